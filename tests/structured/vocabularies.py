"""A small vocabulary for grammar tests, and texts as its tokens."""

from __future__ import annotations

from octavo.structured.vocabulary import Vocabulary, vocabulary_of

EOS, OTHER_EOS, SPECIAL = 256, 257, 258
WORDS = (
    b'{"',
    b'":',
    b'","',
    b'"}',
    b"true",
    b"false",
    b"null",
    b"12",
    "日本".encode(),
    "日".encode() + b"\xe6",
    b"aaa",
    b"</",
)
NUM_TOKENS = 300  # of the logits: the last columns have no token


class Tokens:
    """All bytes, three special tokens, some words, and columns without a token."""

    all_special_ids = [EOS, OTHER_EOS, SPECIAL]

    def all_token_bytes(self, num_tokens: int) -> list[bytes]:
        tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<stop>", b"<special>", *WORDS]
        return tokens + [b""] * (num_tokens - len(tokens))


def small_vocabulary() -> Vocabulary:
    return vocabulary_of(Tokens(), NUM_TOKENS, [EOS, OTHER_EOS])


def spell(text: str) -> list[int]:
    """Return a text byte by byte."""
    return list(text.encode())
