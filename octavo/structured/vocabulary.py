"""The bytes of every token id: what a grammar over text needs to know of a tokenizer, whatever file it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


class TokenSource(Protocol):
    """What is asked of a tokenizer."""

    all_special_ids: list[int]

    def all_token_bytes(self, num_tokens: int) -> list[bytes]: ...


@dataclass(frozen=True)
class Vocabulary:
    """One entry for each bit of a mask: the columns of the logits, at least one more, and what fills the last word.

    tokens: what each id adds to the text; empty for ids without a token, which no grammar ever allows
    special_ids: ids that are no text; eos_ids: those that end an answer, which every grammar allows at its end
    """

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]

    def pack(self) -> bytes:
        """Return the vocabulary as bytes for another process."""
        ends, end = [], 0
        for token in self.tokens:
            end += len(token)
            ends.append(end)
        return msgspec.msgpack.encode((b"".join(self.tokens), ends, self.special_ids, self.eos_ids))

    @staticmethod
    def unpack(data: bytes) -> Vocabulary:
        """Return what `pack` took."""
        joined, ends, special_ids, eos_ids = _decoder.decode(data)
        starts = [0, *ends[:-1]]
        tokens = [joined[start:end] for start, end in zip(starts, ends, strict=True)]
        return Vocabulary(tokens, special_ids, eos_ids)


def vocabulary_of(tokenizer: TokenSource, num_tokens: int, eos_ids: Sequence[int]) -> Vocabulary:
    """Read a tokenizer's vocabulary. num_tokens: width of the logits, which may be more or less than it has tokens.

    For a model without an end-of-sequence id, one id beyond the logits stands for it: its texts end with their grammar.
    """
    tokens = tokenizer.all_token_bytes(num_tokens)
    tokens += [b""] * (32 * num_mask_words(num_tokens) - num_tokens)
    eos_ids = list(eos_ids) or [num_tokens]
    special_ids = sorted({i for i in (*tokenizer.all_special_ids, *eos_ids) if i < len(tokens)})
    return Vocabulary(tokens, special_ids, eos_ids)


def num_mask_words(num_tokens: int) -> int:
    """Return how many 32-bit words a mask has: room for every column of the logits and one more."""
    return num_tokens // 32 + 1


_decoder = msgspec.msgpack.Decoder(tuple[bytes, list[int], list[int], list[int]])
