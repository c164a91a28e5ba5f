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
_NORMALIZER_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

_Value = int | float | bytes
_Message = dict[int, _Value]


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
    pieces: list[_Message] = []
    trainer: _Message = {}
    normalizer: _Message = {}
    for field, value in _fields(data, source):
        if field == _PIECES:
            pieces.append(_message(value, source))
        elif field == _TRAINER_SPEC:
            trainer = _message(value, source)
        elif field == _NORMALIZER_SPEC:
            normalizer = _message(value, source)
    is_plain = not normalizer.get(_REMOVE_EXTRA_WHITESPACES, 1) and not normalizer.get(_NORMALIZER_CHARSMAP)
    if trainer.get(_TRAINER_MODEL_TYPE) != _MODEL_TYPE_BPE or not is_plain:
        raise UnsupportedError(
            f"{source}: only SentencePiece BPE models without text normalisation can be read directly; "
            "save the tokenizer as tokenizer.json with Transformers' save_pretrained"
        )
    types = [int(_number(piece.get(_PIECE_TYPE, TokenType.NORMAL), source)) for piece in pieces]
    return SentencePieceVocabulary(
        tokens=[_text(piece.get(_PIECE_TEXT, b""), source) for piece in pieces],
        types=types,
        scores=[float(_number(piece.get(_PIECE_SCORE, 0.0), source)) for piece in pieces],
        unknown_id=types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else None,
        add_space_prefix=bool(normalizer.get(_ADD_DUMMY_PREFIX, 1)),
    )


def _message(value: _Value, source: str) -> _Message:
    if isinstance(value, bytes):
        return dict(_fields(value, source))
    raise CheckpointError(f"{source} is not a SentencePiece model: expected a message, got the number {value}")


def _text(value: _Value, source: str) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise CheckpointError(f"{source} is not a SentencePiece model: expected text, got the number {value}")


def _number(value: _Value, source: str) -> int | float:
    if isinstance(value, bytes):
        raise CheckpointError(f"{source} is not a SentencePiece model: expected a number, got {len(value)} bytes")
    return value


def _fields(data: bytes, source: str) -> Iterator[tuple[int, _Value]]:
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
