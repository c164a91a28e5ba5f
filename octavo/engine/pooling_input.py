"""The input side of pooling requests: texts, pairs and ids become checked ids; parameters are checked for the model.

Knows tokens and parameters; the ids of requests, priorities and what generation needs are InputProcessor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from octavo.config.pooling import PoolingConfig
from octavo.engine.prompts import ParsedPrompt, TokenizationOptions, parse_prompt
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizers.text_pairs import EncodedText, encode_text
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_checks import wrong


@dataclass(frozen=True)
class PoolingPrompt:
    """A checked prompt. text: as given; None when it came as token ids only"""

    token_ids: list[int]
    text: str | None
    cache_salt: str | None
    second_text_start: int | None


class PoolingInput:
    """Checks and tokenises for one pooling model. max_tokens: longest prompt; vocab_size: bound of token ids"""

    def __init__(self, config: PoolingConfig, tokenizer: Tokenizer | None, max_tokens: int, vocab_size: int) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._vocab_size = vocab_size

    def prompt(self, prompt: object, tokenization_kwargs: Mapping[str, object] | None) -> PoolingPrompt:
        """Return a prompt's ids. A text may be one of a pair: {"prompt": text, "text_pair": second text}.

        Token ids may come with "token_type_ids", 0 for a first text and 1 for a second. tokenization_kwargs: also
        prompt_name, the name of one of the model's prompts, or instruction, a text of one's own to put before the input
        """
        kwargs = dict(tokenization_kwargs or {})
        prompt_name, wish = kwargs.pop("prompt_name", None), kwargs.pop("instruction", None)
        instruction = self._instruction(prompt_name, wish)
        if kwargs.get("truncation_side") is None and self._tokenizer is not None:
            kwargs["truncation_side"] = self._tokenizer.truncation_side
        options = TokenizationOptions.from_kwargs(kwargs)
        pair, types = None, None
        if isinstance(prompt, Mapping):
            pair, types = prompt.get("text_pair"), prompt.get("token_type_ids")
            prompt = {key: value for key, value in prompt.items() if key not in ("text_pair", "token_type_ids")}
        if pair is not None and not isinstance(pair, str):
            raise wrong("text_pair", "text", pair)
        start: int | None = None
        takes_instruction = False

        def encode(text: str) -> list[int]:
            nonlocal start, takes_instruction
            takes_instruction = pair is None
            encoded = self._encode(text if pair is not None else instruction + text, pair, options)
            start = encoded.second_text_start
            return encoded.token_ids

        parsed = parse_prompt(prompt, encode)
        if not takes_instruction and not prompt_name is wish is None:
            raise InvalidRequestError(
                "prompt_name and instruction go before a single text; token ids and pairs of texts take neither",
                "instruction" if prompt_name is None else "prompt_name",
            )
        if types is not None:
            start = _type_start(types, len(parsed.token_ids))
        return self._check(parsed, options, start)

    def params(self, params: PoolingParams) -> PoolingParams:
        """Return a copy that is final for the model; raises InvalidRequestError for what it cannot do."""
        config = self._config
        task = params.task or config.tasks[0]
        if task not in config.tasks:
            raise InvalidRequestError(
                f"task={task!r} is not what this model does; it does: {', '.join(config.tasks)}", "task"
            )
        if params.dimensions is not None:
            self._check_dimensions(params.dimensions, task)
        num_labels = len(config.labels)
        returned = params.returned_token_ids
        if returned is not None and (task != "token_classify" or not returned or max(returned) >= num_labels):
            raise wrong("returned_token_ids", f"labels from 0 to {num_labels - 1}, for token_classify", returned)
        is_for_tokens = task in ("token_embed", "token_classify")
        step_tag_id = params.step_tag_id
        if task == "token_classify" and config.token_pooling == "STEP":
            step_tag_id = config.step_tag_id if step_tag_id is None else step_tag_id
            returned = list(config.returned_token_ids) or None if returned is None else returned
        return msgspec.structs.replace(
            params,
            task=task,
            step_tag_id=step_tag_id,
            returned_token_ids=returned,
            # every token is needed
            skip_reading_prefix_cache=True if is_for_tokens else params.skip_reading_prefix_cache,
        )

    def _check_dimensions(self, dimensions: int, task: str) -> None:
        config = self._config
        if task not in ("embed", "token_embed"):
            raise InvalidRequestError(f"dimensions are for embeddings; task={task!r} has none", "dimensions")
        if dimensions == config.embedding_size:
            return
        if config.matryoshka is None:
            raise InvalidRequestError(
                f"dimensions={dimensions}: embeddings of this model have {config.embedding_size} and cannot be cut: it "
                "was not trained for it (config.json has neither matryoshka_dimensions nor is_matryoshka)",
                "dimensions",
            )
        if config.matryoshka and dimensions not in config.matryoshka:
            raise wrong("dimensions", f"one of {', '.join(map(str, config.matryoshka))}", dimensions)
        if dimensions > config.embedding_size:
            raise wrong("dimensions", f"at most {config.embedding_size}", dimensions)

    def _instruction(self, name: object, instruction: object) -> str:
        """Return the text that goes before an input."""
        config = self._config
        if instruction is not None:
            if not isinstance(instruction, str) or name is not None:
                raise wrong("instruction", "text, and given without prompt_name", instruction)
            text = instruction
        else:
            name = config.default_prompt_name if name is None else name
            if name is None:
                return ""
            if not isinstance(name, str) or name not in config.prompts:
                raise wrong("prompt_name", f"one of {', '.join(config.prompts) or 'none: the model has none'}", name)
            text = config.prompts[name]
        if text and not config.pools_prompt:
            raise UnsupportedError("prompts that do not count in the pooling (include_prompt=false) are not supported")
        return text

    def _encode(self, text: str, pair: str | None, options: TokenizationOptions) -> EncodedText:
        if self._tokenizer is None:
            raise InvalidRequestError("text needs a tokenizer, but skip_tokenizer_init=True; pass token ids", "prompt")
        if self._config.do_lower_case:
            text, pair = text.lower(), None if pair is None else pair.lower()
        return encode_text(
            self._tokenizer,
            text,
            pair,
            add_special_tokens=options.add_special_tokens is not False,
            max_tokens=self._cut_to(options),
            side=options.truncation_side,
        )

    def _cut_to(self, options: TokenizationOptions) -> int | None:
        """Return how many tokens are kept; None: all, and too many are refused."""
        wish = options.truncate_prompt_tokens
        if wish is None:
            return self._max_tokens if self._config.max_text_tokens is not None else None
        if wish > self._max_tokens:
            raise wrong("truncate_prompt_tokens", f"at most {self._max_tokens}, the model's longest input", wish)
        return self._max_tokens if wish == -1 else wish

    def _check(self, parsed: ParsedPrompt, options: TokenizationOptions, start: int | None) -> PoolingPrompt:
        token_ids = parsed.token_ids
        if parsed.text is None and options.truncate_prompt_tokens is not None:
            length = self._cut_to(options) or 0
            token_ids = token_ids[-length:] if options.truncation_side == "left" else token_ids[:length]
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; expected at least one token", "prompt")
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            outside = next(token_id for token_id in token_ids if not 0 <= token_id < self._vocab_size)
            raise wrong("prompt_token_ids", f"made of token ids from 0 to {self._vocab_size - 1}", outside)
        if len(token_ids) > self._max_tokens:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens, but the longest input has {self._max_tokens}; shorten it, or "
                "set truncate_prompt_tokens=-1",
                "prompt",
            )
        return PoolingPrompt(token_ids, parsed.text, parsed.cache_salt, start)


def _type_start(types: object, num_tokens: int) -> int | None:
    """Return where token types change from 0 to 1."""
    is_binary = isinstance(types, list) and all(kind in (0, 1) for kind in types)
    if not isinstance(types, list) or not is_binary or len(types) != num_tokens or types != sorted(types):
        raise wrong("token_type_ids", "0 for each token of a first text, then 1 for each of a second", types)
    return types.index(1) if 1 in types else None
