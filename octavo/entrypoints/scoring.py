"""How well texts go together: what a pooling model must be asked, and the score that its answers give.

A cross-encoder reads both texts at once; of a model for embeddings the cosine is taken, of one that keeps a vector for
each token the sum of each query token's best match (ColBERT's MaxSim).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.config.pooling import PoolingConfig
from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_template import ChatOptions, render_chat
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.pooling import PoolingParams
from octavo.types.pooling_outputs import PoolingOutput, PoolingRequestOutput
from octavo.types.prompts import PromptType
from octavo.types.sampling_checks import wrong

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class ScoringPlan:
    """prompts: what is asked, each text once; pairs: of each score, the prompts that it comes of: both texts, or one"""

    prompts: list[PromptType]
    params: PoolingParams
    pairs: list[tuple[int, ...]]

    def scores(self, outputs: Sequence[PoolingRequestOutput[PoolingOutput]]) -> list[float]:
        """Return each pair's score from the prompts' outputs."""
        vectors = [output.outputs.data for output in outputs]
        return [_score(*(vectors[index] for index in pair)) for pair in self.pairs]


def plan_scoring(
    config: PoolingConfig,
    first: Sequence[object],
    second: Sequence[object],
    params: PoolingParams,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    instruction: str | None = None,
) -> ScoringPlan:
    """Plan a score for each text of `second`, with the one text of `first` or the one at its place.

    template: renders a pair for cross-encoders that are decoders: messages with the roles query and document
    Raises InvalidRequestError for numbers that do not fit, or a model that cannot score.
    """
    if not first or not second or len(first) not in (1, len(second)):
        raise InvalidRequestError(
            f"expected one first text, or as many as second texts, and at least one of each; got {len(first)} and "
            f"{len(second)}"
        )
    asked, documents = [_text(text, "data_1") for text in first], [_text(text, "data_2") for text in second]
    texts, queries = (*asked, *documents), asked * (len(second) // len(first))
    if instruction is not None and (template is None or not config.is_cross_encoder):
        raise InvalidRequestError("instruction is for cross-encoders with a chat template; leave it out", "instruction")
    if config.is_cross_encoder:
        pairs = zip(queries, documents, strict=True)
        if template is None:
            prompts: list[PromptType] = [{"prompt": query, "text_pair": document} for query, document in pairs]
        else:
            prompts = [_rendered(tokenizer, template, instruction, *pair) for pair in pairs]
        return ScoringPlan(prompts, params, [(index,) for index in range(len(prompts))])
    if "embed" not in config.tasks and "token_embed" not in config.tasks:
        raise InvalidRequestError(
            f"this model cannot score: it does {', '.join(config.tasks)}"
            + (f", with {len(config.labels)} labels instead of one" if config.labels else "")
        )
    number_of = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    numbers = [(number_of[query], number_of[document]) for query, document in zip(queries, documents, strict=True)]
    return ScoringPlan(list(number_of), params, numbers)  # type: ignore[arg-type]  # texts are prompts


def _text(text: object, field: str) -> str:
    """Return a text, given as such or as {"text": ...}."""
    if isinstance(text, Mapping):
        text = text.get("text", text)
    if not isinstance(text, str):
        raise wrong("a text to score", "text or {'text': ...}", text, field)
    return text


def _rendered(
    tokenizer: Tokenizer | None, template: str, instruction: str | None, query: str, document: str
) -> PromptType:
    if tokenizer is None:
        raise InvalidRequestError("a template needs a tokenizer, but skip_tokenizer_init=True")
    arguments: dict[str, Any] = {} if instruction is None else {"instruction": instruction}
    messages: list[Any] = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    options = ChatOptions(chat_template=template, add_generation_prompt=False, template_arguments=arguments)
    text = render_chat(tokenizer, messages, options)
    # the template writes the special tokens itself
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


def _score(first: Vectors, second: Vectors | None = None) -> float:
    if second is None:
        return float(first[0])
    if first.ndim == 2:
        return float((first @ second.T).max(axis=1).sum())
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(np.dot(first, second) / max(float(lengths), 1e-12))
