"""SentencePiece-style BPE in the `tokenizers` library: merges derived from scores, spaces as U+2581, byte fallback."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, normalizers

SPACE = "\u2581"


class TokenType(enum.IntEnum):
    """What a token is: SentencePiece's piece types, which GGUF's tokenizer.ggml.token_type uses as well."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_MERGEABLE = frozenset((TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED))


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """types: TokenType values; add_space_prefix: text gets a space in front, and again after each special token."""

    tokens: list[str]
    types: list[int]
    scores: list[float]
    unknown_id: int | None
    add_space_prefix: bool


def build_sentencepiece_backend(vocabulary: SentencePieceVocabulary) -> tokenizers.Tokenizer:
    """Build the backend, without its added tokens and its begin/end template."""
    tokens = [_respell(token) for token in vocabulary.tokens]
    unknown = None if vocabulary.unknown_id is None else tokens[vocabulary.unknown_id]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=derive_merges(tokens, vocabulary.types, vocabulary.scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in vocabulary.types,
    )
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def derive_merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Return BPE merges, best first, equivalent to SentencePiece's rule "join the pair with the best score".

    Every way to cut a token into two others is a merge, ranked by the whole token's score. User-defined tokens, whose
    stored scores mean nothing, come first, by id, because SentencePiece joins them before anything else.
    """
    mergeable = [token_id for token_id, kind in enumerate(types) if kind in _MERGEABLE]
    parts = {tokens[token_id] for token_id in mergeable}
    user_defined = [token_id for token_id in mergeable if types[token_id] == TokenType.USER_DEFINED]
    others = [token_id for token_id in mergeable if types[token_id] != TokenType.USER_DEFINED]
    others.sort(key=lambda token_id: -scores[token_id])
    merges: list[tuple[str, str]] = []
    for token_id in (*user_defined, *others):
        token = tokens[token_id]
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in parts and token[cut:] in parts:
                merges.append((token[:cut], token[cut:]))
    return merges


def _respell(token: str) -> str:
    """Write a token of spaces as the model sees it; GGUF files store such user-defined tokens with real spaces."""
    return SPACE * len(token) if token and not token.strip(" ") else token
