"""Text <-> token ids for one model: the part of a Transformers tokenizer that vLLM's users call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from octavo.config.configs import LoadConfig
from octavo.errors import InvalidRequestError, ModelNotFoundError, RequestFailedError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.resolve import open_checkpoint
from octavo.tokenizers.chat_messages import Message
from octavo.tokenizers.chat_template import ChatOptions, render_chat
from octavo.tokenizers.detokenizer import IncrementalDetokenizer
from octavo.tokenizers.gguf_vocab import load_gguf_tokenizer
from octavo.tokenizers.hf_folder import load_hf_tokenizer
from octavo.tokenizers.parts import TokenizerParts
from octavo.tokenizers.pieces import MAX_TOKEN_ID, DecoderRules, TokenPieces, read_decoder_rules

_MAX_PARTLY_SHOWN = 64


def load_tokenizer(checkpoint: Checkpoint, *, tokenizer_path: str | Path | None = None) -> Tokenizer:
    """Load a checkpoint's tokenizer, or the one of another folder, .gguf file, catalog or hub name.

    Raises CheckpointError for missing or contradictory files, UnsupportedError for a kind that is not built,
    ModelNotFoundError for a name that resolves to nothing.
    """
    if tokenizer_path is None:
        if checkpoint.gguf is not None:
            return Tokenizer(load_gguf_tokenizer(checkpoint.gguf), checkpoint.name)
        return Tokenizer(load_hf_tokenizer(checkpoint.path), checkpoint.name)
    path = Path(tokenizer_path).expanduser()
    if not path.exists() or not str(tokenizer_path).strip():
        try:
            return load_tokenizer(open_checkpoint(str(tokenizer_path), LoadConfig(load_format="dummy")))
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"tokenizer={str(tokenizer_path)!r}: {error}") from error
    if path.suffix == ".gguf":
        return Tokenizer(load_gguf_tokenizer(GGUFFile(path)), str(path))
    return Tokenizer(load_hf_tokenizer(path), str(path))


class Encoding(dict[str, Any]):
    """input_ids and attention_mask of a text or of several; each is an attribute too, as in Transformers."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Tokenizer:
    """One model's tokenizer. Thread-safe; construct with `load_tokenizer`.

    bos_token_id, eos_token_id, unk_token_id, pad_token_id: None when the model has none; the *_token twins are text
    all_special_ids, all_special_tokens: what `skip_special_tokens` leaves out, by id
    end_of_generation_ids: ids that end an answer, the end-of-sequence id first
    chat_template: the default Jinja template, or None
    vocab_size: size without added tokens, as in Transformers; len() counts them
    """

    is_fast = True

    def __init__(self, parts: TokenizerParts, name_or_path: str = "") -> None:
        self.name_or_path = name_or_path
        self.backend = parts.backend
        self.backend.no_truncation()
        self.backend.no_padding()
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.unk_token_id = parts.unk_token_id
        self.pad_token_id = parts.pad_token_id
        self.bos_token = self._token(parts.bos_token_id)
        self.eos_token = self._token(parts.eos_token_id)
        self.unk_token = self._token(parts.unk_token_id)
        self.pad_token = self._token(parts.pad_token_id)
        self.end_of_generation_ids = parts.end_of_generation_ids
        self.truncation_side = parts.truncation_side
        self.chat_templates: Mapping[str, str] = parts.chat_templates
        self.chat_template = parts.chat_templates.get("default")
        added = self.backend.get_added_tokens_decoder()
        self.all_special_ids = sorted(token_id for token_id, token in added.items() if token.special)
        self.all_special_tokens = [added[token_id].content for token_id in self.all_special_ids]
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=False)
        self._size: int = self.backend.get_vocab_size(with_added_tokens=True)
        # None for decoders that do more than concatenate (WordPiece in embedding models): those texts do not stream.
        self._rules = read_decoder_rules(self.backend)
        self._all_pieces = TokenPieces(self.backend, self._rules or DecoderRules(), frozenset())
        self._text_pieces = TokenPieces(self.backend, self._rules or DecoderRules(), frozenset(self.all_special_ids))
        self._partly_shown: dict[frozenset[int], TokenPieces] = {}

    def __len__(self) -> int:
        return self._size

    @functools.cached_property
    def max_token_id(self) -> int:
        """The largest id that has a token; ids may have gaps, so this can exceed len() - 1."""
        return max(self.get_vocab().values(), default=-1)

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> Encoding:
        """Return input_ids and attention_mask of a text, or lists of them for several texts."""
        if isinstance(text, str):
            input_ids = self.encode(text, add_special_tokens)
            return Encoding(input_ids=input_ids, attention_mask=[1] * len(input_ids))
        batch = [self.encode(one, add_special_tokens) for one in text]
        return Encoding(input_ids=batch, attention_mask=[[1] * len(ids) for ids in batch])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; special tokens written in it count as such.

        Raises InvalidRequestError for what is no text, RequestFailedError where the tokenizer's tables are damaged.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"text to tokenize must be a string, got {type(text).__name__}", "prompt")
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError):  # the backend's words for a lone surrogate, as in '\ud800'
            raise InvalidRequestError(
                "the prompt's text is not valid Unicode: it has a lone surrogate", "prompt"
            ) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust: no Exception, and of no module
                raise
            raise RequestFailedError(f"{self.name_or_path}: the tokenizer's tables are damaged: {error}") from None
        return ids

    def decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Return the text of ids; ids without a token give nothing.

        spaces_between_special_tokens is accepted for vLLM's sake: no supported decoder puts spaces between tokens.
        """
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if self._rules is None:
            known = [token_id for token_id in ids if self._token(token_id) is not None]
            text: str = self.backend.decode(known, skip_special_tokens=skip_special_tokens)
            return text
        detokenizer = self.detokenizer((), skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.finish()

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        shown_tokens: frozenset[str] = frozenset(),
    ) -> IncrementalDetokenizer:
        """Return the incremental decoder of an output that continues a prompt.

        shown_tokens: special tokens that are not skipped
        """
        if self._rules is None:
            raise UnsupportedError(
                f"{self.name_or_path}: the tokenizer's decoder is not one of those of generative models (byte-level, "
                "or SentencePiece style with U+2581 for spaces), so its text cannot be decoded token by token"
            )
        pieces = self._all_pieces
        if skip_special_tokens:
            pieces = self._pieces_with(shown_tokens) if shown_tokens else self._text_pieces
        return IncrementalDetokenizer(pieces, self._rules, prompt_token_ids)

    def _pieces_with(self, shown_tokens: frozenset[str]) -> TokenPieces:
        """Return the pieces of all tokens but the special ones that are not shown; kept, for there are few sets.

        Requests can name any set, as stop strings: many start the collection anew.
        """
        hidden = frozenset(
            token_id
            for token_id, token in zip(self.all_special_ids, self.all_special_tokens, strict=True)
            if token not in shown_tokens
        )
        pieces = self._partly_shown.get(hidden)
        if pieces is None:
            if len(self._partly_shown) >= _MAX_PARTLY_SHOWN:
                self._partly_shown.clear()
            pieces = TokenPieces(self.backend, self._rules or DecoderRules(), hidden)
            self._partly_shown[hidden] = pieces
        return pieces

    def token_bytes(self, token_id: int) -> bytes:
        """Return the true bytes of a token, part of a character or not; empty for an id without a token."""
        return _as_bytes(self._all_pieces[token_id])

    def all_token_bytes(self, num_tokens: int) -> list[bytes]:
        """Return `token_bytes` of so many ids, which takes no memory afterwards."""
        return [_as_bytes(self._all_pieces.read(token_id)) for token_id in range(num_tokens)]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int], skip_special_tokens: bool = False) -> list[str | None]: ...
    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> str | list[str | None] | None:
        """Return tokens as the vocabulary spells them; None for an id without one."""
        if isinstance(ids, int):
            return self._token(ids)
        skipped = frozenset(self.all_special_ids) if skip_special_tokens else frozenset()
        return [self._token(token_id) for token_id in ids if token_id not in skipped]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """Return the ids of tokens as the vocabulary spells them; the unknown id, or None, for one it does not have."""
        if isinstance(tokens, str):
            found: int | None = self.backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """Return a text's tokens as the vocabulary spells them."""
        return [self.backend.id_to_token(token_id) or "" for token_id in self.encode(text, add_special_tokens)]

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id, added tokens included."""
        vocabulary: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        """Return token -> id of the added tokens."""
        return {token.content: token_id for token_id, token in self.backend.get_added_tokens_decoder().items()}

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        chat_template: str | None = None,
        **template_arguments: Any,
    ) -> str | list[int]:
        """Render a conversation with the chat template; return its ids, or the text with tokenize=False."""
        options = ChatOptions(
            chat_template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_arguments=template_arguments,
        )
        text = render_chat(self, conversation, options)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _token(self, token_id: int | None) -> str | None:
        if token_id is None or not 0 <= token_id <= MAX_TOKEN_ID:
            return None
        token: str | None = self.backend.id_to_token(token_id)
        return token


def _as_bytes(piece: str | bytes) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode()
