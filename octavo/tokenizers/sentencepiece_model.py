"""A SentencePiece tokenizer.model file: the few protobuf fields that a BPE tokenizer needs.

Field numbers are those of sentencepiece's sentencepiece_model.proto; the wire format is protobuf's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import tokenizers

from octavo.errors import CheckpointError, UnsupportedError
from octavo.tokenizers.sentencepiece_bpe import SentencePieceVocabulary, TokenType, build_sentencepiece_backend

_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3  # of ModelProto
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3  # of SentencePiece
_TRAINER_MODEL_TYPE, _MODEL_TYPE_BPE = 3, 2
_NORMALIZER_NAME, _NORMALIZER_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 1, 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def load_sentencepiece_backend(path: Path) -> tokenizers.Tokenizer:
    """Build the backend of a BPE tokenizer.model; special tokens are declared, the begin/end template is not."""
    vocabulary = read_sentencepiece_model(path.read_bytes(), str(path))
    backend = build_sentencepiece_backend(vocabulary)
    special = [
        tokenizers.AddedToken(token, normalized=False, special=kind != TokenType.USER_DEFINED)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED) and token.strip(" ")
    ]
    backend.add_tokens(special)
    return backend


def read_sentencepiece_model(data: bytes, source: str) -> SentencePieceVocabulary:
    """Parse a ModelProto. Raises UnsupportedError for anything but BPE with a plain normaliser."""
    tokens: list[str] = []
    types: list[int] = []
    scores: list[float] = []
    model_type = 1  # unigram, the proto's default
    prefix, squeeze, charsmap = 1, 1, b""
    for field, value in _fields(data, source):
        if field == _PIECES:
            piece = dict(_fields(_message(value, source), source))
            tokens.append(_message(piece.get(_PIECE_TEXT, b""), source).decode("utf-8", "replace"))
            scores.append(float(piece.get(_PIECE_SCORE, 0.0)))  # type: ignore[arg-type]
            types.append(int(piece.get(_PIECE_TYPE, TokenType.NORMAL)))  # type: ignore[arg-type]
        elif field == _TRAINER_SPEC:
            model_type = dict(_fields(_message(value, source), source)).get(_TRAINER_MODEL_TYPE, 1)
        elif field == _NORMALIZER_SPEC:
            normalizer = dict(_fields(_message(value, source), source))
            prefix = normalizer.get(_ADD_DUMMY_PREFIX, 1)
            squeeze = normalizer.get(_REMOVE_EXTRA_WHITESPACES, 1)
            charsmap = normalizer.get(_NORMALIZER_CHARSMAP, b"")
    if model_type != _MODEL_TYPE_BPE or squeeze or charsmap:
        raise UnsupportedError(
            f"{source}: only SentencePiece BPE models without text normalisation can be read directly; "
            "save the tokenizer as tokenizer.json with Transformers' save_pretrained"
        )
    unknown = next((i for i, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    return SentencePieceVocabulary(tokens, types, scores, unknown, add_space_prefix=bool(prefix))


def _message(value: int | float | bytes, source: str) -> bytes:
    if not isinstance(value, bytes):
        raise CheckpointError(f"{source} is not a SentencePiece model: a message field holds a number")
    return value


def _fields(data: bytes, source: str) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of a protobuf message; 32-bit fields are read as floats."""
    position = 0
    try:
        while position < len(data):
            key, position = _varint(data, position)
            field, wire_type = key >> 3, key & 7
            if wire_type == _VARINT:
                value, position = _varint(data, position)
                yield field, value
            elif wire_type == _BYTES:
                length, position = _varint(data, position)
                if position + length > len(data):
                    raise IndexError
                yield field, data[position : position + length]
                position += length
            elif wire_type == _FIXED32:
                yield field, struct.unpack_from("<f", data, position)[0]
                position += 4
            elif wire_type == _FIXED64:
                position += 8
            else:
                raise IndexError
    except (IndexError, struct.error):
        raise CheckpointError(f"{source} is not a SentencePiece model: malformed at byte {position}") from None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
