"""The vocabularies of encoders in the `tokenizers` library: WordPiece (BERT) and SentencePiece's Unigram (XLM-RoBERTa).

As GGUF files keep them: WordPiece tokens that begin a word are marked, not those that go on with one.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from octavo.tokenizers.sentencepiece_bpe import SPACE, TokenType

_SPECIAL_TYPES = frozenset((TokenType.UNKNOWN, TokenType.CONTROL))
_CONTINUED = "##"


def build_wordpiece_backend(
    tokens: list[str], types: list[int], unknown_id: int, lowercase: bool | None
) -> tokenizers.Tokenizer:
    """Build the backend, without added tokens and template. lowercase: None: as the vocabulary seems to be."""
    pieces = [
        token if kind in _SPECIAL_TYPES or _is_bracketed(token) else _wordpiece(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in pieces if not _is_bracketed(piece))
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[unknown_id])
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUED)
    return backend


def _wordpiece(token: str) -> str:
    return token[len(SPACE) :] if token.startswith(SPACE) else _CONTINUED + token


def _is_bracketed(token: str) -> bool:
    """Say whether it is a name and no text, such as [CLS] or [unused7]."""
    return token.removeprefix(SPACE).startswith("[") and len(token) > 2 and token.endswith("]")


@dataclass(frozen=True)
class UnigramRules:
    """charsmap: SentencePiece's precompiled normalisation, empty for none"""

    charsmap: bytes
    add_space_prefix: bool
    removes_extra_spaces: bool


def build_unigram_backend(
    tokens: list[str], scores: list[float], unknown_id: int, rules: UnigramRules
) -> tokenizers.Tokenizer:
    """Build the backend, without added tokens and template. Raises ValueError for a charsmap that is none."""
    backend = tokenizers.Tokenizer(models.Unigram(list(zip(tokens, scores, strict=True)), unknown_id))
    steps: list[normalizers.Normalizer] = []
    if rules.charsmap:
        try:
            steps.append(normalizers.Precompiled(rules.charsmap))
        except Exception as error:  # the library raises nothing more exact
            raise ValueError(str(error)) from None
    if rules.removes_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_space_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme)
    backend.decoder = decoders.Metaspace(SPACE, scheme)
    return backend
