"""What each token id contributes to text: a string, or raw bytes when it is only part of a character.

Knows the decoders of the `tokenizers` library that language models use: the byte-level alphabet of GPT-2 and the
SentencePiece style (U+2581 for a space, <0xNN> byte tokens). Their output is a plain concatenation of pieces, which is
what makes decoding one token at a time exact and cheap.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import tokenizers

REPLACEMENT_CHARACTER = "\ufffd"
MAX_TOKEN_ID = 2**32 - 1  # the backend's ids are unsigned 32-bit


@dataclass(frozen=True)
class DecoderRules:
    """A decoder that concatenates pieces.

    byte_level: tokens are spelled in GPT-2's byte alphabet
    byte_fallback: tokens of the form <0xNN> are bytes
    replacements: applied to each token in order, such as U+2581 -> space
    strip_left: number of leading spaces that the whole text loses
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_left: int = 0


class TokenPieces(dict[int, str | bytes]):
    """Token id -> piece, filled on first use. Ids in `skipped`, and ids without a token, give an empty string.

    A `str` piece stands on its own; a `bytes` piece is not valid UTF-8 alone, or is a byte token.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rules: DecoderRules, skipped: Set[int]) -> None:
        super().__init__()
        self._backend = backend
        self._rules = rules
        self._skipped = skipped

    def __missing__(self, token_id: int) -> str | bytes:
        piece = self[token_id] = self.read(token_id)
        return piece

    def read(self, token_id: int) -> str | bytes:
        """Return a piece and do not keep it."""
        if 0 <= token_id <= MAX_TOKEN_ID and token_id not in self._skipped:
            token = self._backend.id_to_token(token_id)
            if token is not None:
                return token_piece(token, self._rules)
        return ""


def token_piece(token: str, rules: DecoderRules) -> str | bytes:
    """Return what a token contributes to text."""
    if rules.byte_level:
        data = byte_level_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    for old, new in rules.replacements:
        token = token.replace(old, new)
    if rules.byte_fallback:
        byte = fallback_byte(token)
        if byte is not None:
            return byte
    return token


def byte_level_bytes(token: str) -> bytes:
    """Spell a token of GPT-2's byte alphabet as bytes; a token with any other character is taken as plain text."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def fallback_byte(token: str) -> bytes | None:
    """Return the byte of a <0xNN> token, or None for any other token."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    return None


def read_decoder_rules(backend: tokenizers.Tokenizer) -> DecoderRules | None:
    """Return the rules of the backend's decoder, or None when it does more than concatenate pieces."""
    if backend.decoder is None:
        return None
    config = json.loads(backend.decoder.__getstate__())
    steps = config["decoders"] if config["type"] == "Sequence" else [config]
    rules: DecoderRules | None = DecoderRules()
    for step in steps:
        if rules is not None:
            rules = _add_step(rules, step)
    return rules


def _add_step(rules: DecoderRules, step: dict[str, Any]) -> DecoderRules | None:
    kind = step["type"]
    if kind == "ByteLevel":
        return replace(rules, byte_level=True)
    if kind == "ByteFallback":
        return replace(rules, byte_fallback=True)
    if kind == "Fuse":
        return rules
    if kind == "Replace" and "String" in step["pattern"]:
        return replace(rules, replacements=(*rules.replacements, (step["pattern"]["String"], step["content"])))
    if kind == "Strip" and step["content"] == " " and step["stop"] == 0:
        return replace(rules, strip_left=step["start"])
    if kind == "Metaspace":
        strip_left = 0 if step.get("prepend_scheme") == "never" else 1
        return replace(rules, replacements=(*rules.replacements, (step["replacement"], " ")), strip_left=strip_left)
    return None


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


BYTE_OF_CHARACTER = _byte_alphabet()
