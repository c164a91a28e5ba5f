"""A tokenizer from a GGUF file's metadata: byte-level BPE ("gpt2"), SentencePiece-style BPE ("llama") and Unigram
("t5"), WordPiece ("bert").

Keys and token types are those of the GGUF specification (ggml, docs/gguf.md); where a file leaves something open this
does what llama.cpp does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import tokenizers
from tokenizers import decoders, models

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.end_of_generation import find_end_of_generation_ids
from octavo.loader.gguf_file import GGUFFile
from octavo.log import get_logger
from octavo.tokenizers.encoder_vocab import UnigramRules, build_unigram_backend, build_wordpiece_backend
from octavo.tokenizers.parts import TokenizerParts
from octavo.tokenizers.post_processing import set_bos_eos_template
from octavo.tokenizers.pre_tokenizers import PreTokenization, build_pre_tokenizer, find_pre_tokenization
from octavo.tokenizers.sentencepiece_bpe import SentencePieceVocabulary, TokenType, build_sentencepiece_backend

logger = get_logger(__name__)

_SPECIAL_TYPES = frozenset((TokenType.UNKNOWN, TokenType.CONTROL))


@dataclass(frozen=True)
class GGUFVocabulary:
    """The `tokenizer.*` metadata, checked.

    types, scores: one per token; types are NORMAL where the file has none
    special_ids: role (bos, eos, eot, eom, unknown, padding, ...) -> token id, for the roles that the file names
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    special_ids: dict[str, int] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    removes_extra_spaces: bool = True
    lowercase: bool | None = None
    charsmap: bytes = b""
    chat_templates: dict[str, str] = field(default_factory=dict)
    architecture: str = ""
    source: str = "GGUF file"


def load_gguf_tokenizer(gguf: GGUFFile) -> TokenizerParts:
    """Build the tokenizer of a GGUF file.

    Raises CheckpointError for a vocabulary that contradicts itself, UnsupportedError for a kind that is not built.
    """
    return build_gguf_tokenizer(read_gguf_vocabulary(gguf))


def build_gguf_tokenizer(vocabulary: GGUFVocabulary) -> TokenizerParts:
    """Build the backend and collect the special ids."""
    builder = _BUILDERS.get(vocabulary.model)
    if builder is None:
        raise UnsupportedError(
            f"{vocabulary.source}: tokenizer model {vocabulary.model!r} is not supported (supported: "
            f"{', '.join(_BUILDERS)}); give the original model's folder with tokenizer=..."
        )
    return builder(vocabulary)


def _build_byte_level(vocabulary: GGUFVocabulary) -> TokenizerParts:
    kind = vocabulary.pre
    if kind in ("", "default"):
        logger.warning(
            "%s names no pre-tokenizer; using llama.cpp's default rules. Answers may be worse than the original "
            "model's; convert the model again to fix this",
            vocabulary.source,
        )
        kind = "default"
    rules = find_pre_tokenization(kind)
    if not vocabulary.merges:
        raise CheckpointError(f"{vocabulary.source}: a byte-level vocabulary needs tokenizer.ggml.merges, got none")
    backend = tokenizers.Tokenizer(_byte_level_model(vocabulary, rules))
    backend.pre_tokenizer = build_pre_tokenizer(rules)
    backend.decoder = decoders.ByteLevel()
    add_bos = rules.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    return _finish(backend, vocabulary, vocabulary.special_ids, add_bos)


def _byte_level_model(vocabulary: GGUFVocabulary, rules: PreTokenization) -> models.BPE:
    token_ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.merges:
        left, space, right = merge.partition(" ")
        if not space or left not in token_ids or right not in token_ids or left + right not in token_ids:
            raise CheckpointError(
                f"{vocabulary.source}: merge {merge!r} must join two tokens of the vocabulary into a third"
            )
        merges.append((left, right))
    return models.BPE(vocab=token_ids, merges=merges, ignore_merges=rules.ignore_merges)


def _build_sentencepiece(vocabulary: GGUFVocabulary) -> TokenizerParts:
    # The ids that SentencePiece's own trainer gives; files leave the keys out when nothing differs.
    special_ids = {"unknown": 0, "bos": 1, "eos": 2, **vocabulary.special_ids}
    special_ids = {role: token_id for role, token_id in special_ids.items() if token_id < len(vocabulary.tokens)}
    backend = build_sentencepiece_backend(
        SentencePieceVocabulary(
            tokens=vocabulary.tokens,
            types=vocabulary.types,
            scores=vocabulary.scores,
            unknown_id=special_ids.get("unknown"),
            add_space_prefix=vocabulary.add_space_prefix is not False,
        )
    )
    return _finish(backend, vocabulary, special_ids, add_bos=vocabulary.add_bos is not False)


def _build_wordpiece(vocabulary: GGUFVocabulary) -> TokenizerParts:
    special_ids = dict(vocabulary.special_ids)
    for role, token in (("bos", "[CLS]"), ("eos", "[SEP]"), ("unknown", "[UNK]")):  # older files name none
        if role not in special_ids:
            special_ids[role] = _required_id(vocabulary, token)
    backend = build_wordpiece_backend(vocabulary.tokens, vocabulary.types, special_ids["unknown"], vocabulary.lowercase)
    return _finish(backend, replace(vocabulary, add_eos=True), special_ids, add_bos=True)


def _build_unigram(vocabulary: GGUFVocabulary) -> TokenizerParts:
    special_ids = dict(vocabulary.special_ids)
    if "unknown" not in special_ids:
        special_ids["unknown"] = _required_id(vocabulary, "<unk>")
    rules = UnigramRules(vocabulary.charsmap, vocabulary.add_space_prefix is not False, vocabulary.removes_extra_spaces)
    try:
        backend = build_unigram_backend(vocabulary.tokens, vocabulary.scores, special_ids["unknown"], rules)
    except ValueError as error:
        raise CheckpointError(
            f"{vocabulary.source}: tokenizer.ggml.precompiled_charsmap is unusable: {error}"
        ) from None
    vocabulary = replace(vocabulary, add_eos=vocabulary.add_eos is not False)
    return _finish(backend, vocabulary, special_ids, add_bos=vocabulary.add_bos is not False)


def _required_id(vocabulary: GGUFVocabulary, token: str) -> int:
    if token not in vocabulary.tokens:
        raise CheckpointError(f"{vocabulary.source}: the vocabulary has no {token} and names no token in its place")
    return vocabulary.tokens.index(token)


def _finish(
    backend: tokenizers.Tokenizer, vocabulary: GGUFVocabulary, special_ids: dict[str, int], add_bos: bool
) -> TokenizerParts:
    """Declare the added tokens and the begin/end template."""
    control_ids = {i for i, kind in enumerate(vocabulary.types) if kind == TokenType.CONTROL}
    eog_ids = find_end_of_generation_ids(vocabulary.tokens, control_ids, special_ids)
    _declare_added_tokens(backend, vocabulary, {*special_ids.values(), *eog_ids})
    bos, eos = special_ids.get("bos"), special_ids.get("eos")
    before_second = None
    if vocabulary.architecture in _ENCODERS:  # texts of a pair: [CLS] A [SEP] B [SEP]; RoBERTa: <s> A </s></s> B </s>
        separator = special_ids.get("separator", eos)
        before_second = [] if vocabulary.model == "bert" or separator is None else [separator]
    set_bos_eos_template(
        backend, bos if add_bos else None, eos if vocabulary.add_eos else None, before_second=before_second
    )
    return TokenizerParts(
        backend=backend,
        bos_token_id=bos,
        eos_token_id=eos,
        unk_token_id=special_ids.get("unknown"),
        pad_token_id=special_ids.get("padding"),
        end_of_generation_ids=eog_ids,
        chat_templates=vocabulary.chat_templates,
        source=vocabulary.source,
    )


def _declare_added_tokens(backend: tokenizers.Tokenizer, vocabulary: GGUFVocabulary, special_ids: set[int]) -> None:
    """Make control tokens special and user-defined tokens whole: neither is ever cut into pieces."""
    # Phi-3's tokens eat the white space behind them; GGUF has no field for it, llama.cpp goes by the name as well.
    strips = vocabulary.architecture == "phi3" and vocabulary.model == "llama"
    special: list[tokenizers.AddedToken] = []
    plain: list[tokenizers.AddedToken] = []
    for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in _SPECIAL_TYPES or token_id in special_ids:
            rstrip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
            special.append(tokenizers.AddedToken(token, normalized=False, special=True, rstrip=rstrip))
        elif kind == TokenType.USER_DEFINED and backend.token_to_id(token) == token_id:
            plain.append(tokenizers.AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


_BUILDERS = {
    "gpt2": _build_byte_level,
    "llama": _build_sentencepiece,
    "bert": _build_wordpiece,
    "t5": _build_unigram,
}

_ENCODERS = ("bert", "nomic-bert")
_ROLE_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unknown": "unknown_token_id",
    "padding": "padding_token_id",
    "separator": "seperator_token_id",  # spelled so in the specification
}


def read_gguf_vocabulary(gguf: GGUFFile) -> GGUFVocabulary:
    """Read and check the `tokenizer.*` metadata."""
    source = str(gguf.path)
    tokens = gguf.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(f"{source}: metadata has no 'tokenizer.ggml.tokens', so the file has no vocabulary")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    _check_unique(tokens, source)
    types = _numbers(gguf, "tokenizer.ggml.token_type", len(tokens))
    scores = _numbers(gguf, "tokenizer.ggml.scores", len(tokens))
    if not all(map(math.isfinite, types)):
        raise CheckpointError(f"{source}: 'tokenizer.ggml.token_type' has numbers that are no types")
    charsmap = gguf.numbers("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None and charsmap.dtype.kind not in "iu":
        raise CheckpointError(f"{source}: 'tokenizer.ggml.precompiled_charsmap' must be bytes, got {charsmap.dtype}")
    return GGUFVocabulary(
        model=gguf.require("tokenizer.ggml.model", str),
        pre=gguf.get("tokenizer.ggml.pre", str) or "",
        tokens=tokens,
        types=[int(kind) for kind in types] if types else [TokenType.NORMAL] * len(tokens),
        scores=scores or [0.0] * len(tokens),
        merges=gguf.strings("tokenizer.ggml.merges") or [],
        special_ids=_read_special_ids(gguf, len(tokens)),
        add_bos=gguf.get("tokenizer.ggml.add_bos_token", bool),
        add_eos=gguf.get("tokenizer.ggml.add_eos_token", bool),
        add_space_prefix=gguf.get("tokenizer.ggml.add_space_prefix", bool),
        removes_extra_spaces=gguf.get("tokenizer.ggml.remove_extra_whitespaces", bool) is not False,
        lowercase=gguf.get("tokenizer.ggml.normalizer.lowercase", bool),
        charsmap=b"" if charsmap is None else charsmap.astype(np.uint8).tobytes(),
        chat_templates=_read_chat_templates(gguf),
        architecture=gguf.get("general.architecture", str) or "",
        source=source,
    )


def _check_unique(tokens: list[str], source: str) -> None:
    if len(set(tokens)) == len(tokens):
        return
    first_id: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if token in first_id:
            raise CheckpointError(
                f"{source}: token {token!r} is twice in the vocabulary, as ids {first_id[token]} and {token_id}"
            )
        first_id[token] = token_id


def _numbers(gguf: GGUFFile, key: str, count: int) -> list[float]:
    values = gguf.numbers(key)
    if values is None:
        return []
    if len(values) < count:
        raise CheckpointError(f"{gguf.path}: {key!r} must have one entry for each of {count} tokens, got {len(values)}")
    numbers: list[float] = values[:count].tolist()
    return numbers


def _read_special_ids(gguf: GGUFFile, num_tokens: int) -> dict[str, int]:
    special_ids: dict[str, int] = {}
    for role, key in _ROLE_KEYS.items():
        token_id = gguf.get(f"tokenizer.ggml.{key}", int)
        if token_id is None:
            continue
        if not 0 <= token_id < num_tokens:
            logger.warning(
                "%s: tokenizer.ggml.%s = %d is outside the vocabulary of %d tokens; ignored",
                *(gguf.path, key, token_id, num_tokens),
            )
            continue
        special_ids[role] = token_id
    return special_ids


def _read_chat_templates(gguf: GGUFFile) -> dict[str, str]:
    templates: dict[str, str] = {}
    for name in ("default", *(gguf.strings("tokenizer.chat_templates") or ())):
        key = "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}"
        source = gguf.get(key, str)
        if source is not None:
            templates[name] = source
    return templates
