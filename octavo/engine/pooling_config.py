"""Decides whether a model generates or pools, and how it pools: from the options and the checkpoint's own files."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from octavo.config import EngineArgs
from octavo.config.pooling import PoolerConfig, PoolingConfig, ScoreActivation, SequencePooling, TokenPooling
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.loader.sentence_transformers import SentenceTransformersFacts
from octavo.log import get_logger
from octavo.models.pooling import check_dense_modules
from octavo.models.pooling_registry import (
    CLASSIFIER_TOKEN_IDS,
    PoolingFacts,
    PoolingKind,
    describe_pooling,
    find_architecture,
)
from octavo.models.registry import ARCHITECTURES
from octavo.tokenizers.tokenizer import load_tokenizer
from octavo.types.pooling import PoolingTask

logger = get_logger(__name__)


def pooling_config(args: EngineArgs, checkpoint: Checkpoint) -> PoolingConfig | None:
    """Return how the model pools; None: it generates. Raises ConfigError and UnsupportedError."""
    if not _pools(args, checkpoint):
        if args.pooler_config:
            raise ConfigError("pooler_config is for pooling models; set runner='pooling', or leave it out")
        return None
    facts = describe_pooling(checkpoint.config)
    wish = _Wishes(args.pooler_config or {})
    if args.convert in ("embed", "classify") and args.convert != facts.kind:
        raise UnsupportedError(
            f"convert={args.convert!r}: {checkpoint.name} is a model for {facts.kind}; leave convert out, or name "
            "another architecture with hf_overrides"
        )
    config = _decide(facts, checkpoint, wish)
    if args.enable_chunked_prefill and not config.computes_in_pieces:
        raise ConfigError("enable_chunked_prefill: this model needs all tokens of a prompt at once; leave it out")
    logger.info(
        "a pooling model: %s; %s pooling%s",
        ", ".join(config.tasks),
        config.sequence_pooling,
        f", {config.embedding_size} dimensions" if not config.labels else f", labels {', '.join(config.labels[:8])}",
    )
    return config


def with_classifier_tokens(checkpoint: Checkpoint, tokenizer_path: str | None) -> Checkpoint:
    """Give a reranker whose score is the choice between two tokens (classifier_from_token) the ids of these."""
    config = checkpoint.config
    if "classifier_from_token" not in config:
        return checkpoint
    tokens = config.list("classifier_from_token")
    tokenizer = load_tokenizer(checkpoint, tokenizer_path=tokenizer_path)
    token_ids = [tokenizer.get_vocab().get(token) for token in tokens if isinstance(token, str)]
    if len(tokens) != 2 or len(token_ids) != 2 or None in token_ids:
        raise UnsupportedError(
            f"{config.source}: classifier_from_token must be two tokens of the model, got {tokens!r}"
        )
    values = {**config.values, CLASSIFIER_TOKEN_IDS: token_ids, "num_labels": 1, "id2label": None}
    return dataclasses.replace(checkpoint, config=HFConfig(values, config.source))


def _pools(args: EngineArgs, checkpoint: Checkpoint) -> bool:
    """Say whether the model pools: as asked for, or as its architecture or its sentence-transformers files have it."""
    if args.task not in (None, "auto", "generate") or args.convert in ("embed", "classify") or args.runner == "pooling":
        return True
    names = checkpoint.config.values.get("architectures")
    names = names if isinstance(names, list) else []
    generates = any(name in ARCHITECTURES for name in names)
    if args.runner == "generate" or args.task == "generate":
        if not generates and find_architecture(names) is not None:
            raise UnsupportedError(
                f"{checkpoint.name} ({', '.join(map(str, names))}) is a pooling model and generates no text; leave "
                "runner='generate' (--runner) out for embeddings or scores"
            )
        return False
    if generates:
        return checkpoint.sentence_transformers is not None or bool(
            checkpoint.config.values.get("use_bidirectional_attention")
        )
    return find_architecture(names) is not None


def _decide(facts: PoolingFacts, checkpoint: Checkpoint, wish: _Wishes) -> PoolingConfig:
    config, files = checkpoint.config, checkpoint.sentence_transformers or _NO_FILES
    kind: PoolingKind = "token_embed" if facts.kind == "embed" and files.pooling is None else facts.kind
    size = check_dense_modules(files.dense, facts.embedding_size)
    own_pooling = files.pooling or facts.pooling
    is_embedding = kind in ("embed", "token_embed")
    sequence_pooling: SequencePooling = wish.choice("seq_pooling_type", "pooling_type", SequencePooling) or own_pooling  # type: ignore[assignment]
    token_pooling: TokenPooling = wish.choice("tok_pooling_type", "pooling_type", TokenPooling) or "ALL"  # type: ignore[assignment]
    return PoolingConfig(
        tasks=_TASKS[kind] + (("token_classify",) if kind == "classify" and facts.is_causal else ()),
        sequence_pooling=sequence_pooling,
        token_pooling=token_pooling,
        embedding_size=size if is_embedding else facts.embedding_size,
        score_activation=_score_activation(config, facts),
        use_activation=wish.use_activation(files.normalize if is_embedding else True),
        is_causal=facts.is_causal,
        labels=facts.labels,
        dimensions=wish.integer("dimensions"),
        matryoshka=_matryoshka(config),
        logit_mean=wish.number("logit_mean", wish.number("logit_bias", 0.0)),
        logit_sigma=wish.number("logit_sigma", 1.0),
        step_tag_id=wish.integer("step_tag_id"),
        returned_token_ids=wish.labels(len(facts.labels)),
        max_text_tokens=files.max_seq_length,
        do_lower_case=files.do_lower_case,
        prompts=files.prompts,
        default_prompt_name=files.default_prompt_name,
        pools_prompt=files.pools_prompt,
    )


def _score_activation(config: HFConfig, facts: PoolingFacts) -> ScoreActivation:
    """Return what makes scores of logits: as a cross-encoder's files say, or by problem and number of labels."""
    own = config.section("sentence_transformers")
    name = own.str("activation_fn", "") if own is not None else ""
    name = (name or config.str("sbert_ce_default_activation_function", "")).rpartition(".")[2]
    if name:
        if name not in _TORCH_ACTIVATIONS:
            raise UnsupportedError(
                f"{config.source}: the activation {name!r} of scores is not supported; supported: "
                f"{', '.join(_TORCH_ACTIVATIONS)}"
            )
        return _TORCH_ACTIVATIONS[name]
    problem = config.str("problem_type", "")
    default: ScoreActivation = "softmax"
    if len(facts.labels) == 1:
        default = "sigmoid" if facts.kind == "classify" else "identity"  # a reward for each token has no bounds
    return _PROBLEMS.get(problem, default)


def _matryoshka(config: HFConfig) -> tuple[int, ...] | None:
    if "matryoshka_dimensions" in config:
        lengths = config.list("matryoshka_dimensions")
        if not all(type(length) is int and length > 0 for length in lengths):
            raise CheckpointError(
                f"{config.source}: 'matryoshka_dimensions' must be positive integers, got {lengths!r}"
            )
        return tuple(lengths)
    return () if config.bool("is_matryoshka", False) else None


class _Wishes:
    """A pooler_config, read by name; unknown names are refused."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        unknown = sorted(values.keys() - _KNOWN)
        if unknown:
            raise ConfigError(f"pooler_config takes {', '.join(sorted(_KNOWN))}; got {unknown[0]!r}")
        self.values = values

    def choice(self, name: str, short_name: str, kinds: Any) -> str | None:
        """Return a pooling type by its own name, or by the short one if that is of this kind."""
        choices = typing.get_args(kinds)
        value = self.values.get(name)
        if value is None:
            short = self.values.get(short_name)
            others = (*typing.get_args(SequencePooling), *typing.get_args(TokenPooling))
            if short is not None and short not in others:
                raise ConfigError(f"pooler_config.{short_name} must be one of {', '.join(others)}, got {short!r}")
            return short if short in choices else None
        if value not in choices:
            raise ConfigError(f"pooler_config.{name} must be one of {', '.join(choices)}, got {value!r}")
        return str(value)

    def use_activation(self, default: bool) -> bool:
        """Return use_activation, under its present or an older name."""
        for name in ("use_activation", "normalize", "softmax", "activation"):
            value = self.values.get(name)
            if value is not None:
                if not isinstance(value, bool):
                    raise ConfigError(f"pooler_config.{name} must be true or false, got {value!r}")
                return value
        return default

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise ConfigError(f"pooler_config.{name} must be an integer of at least 0, got {value!r}")
        return value

    def labels(self, num_labels: int) -> tuple[int, ...]:
        """Return returned_token_ids: numbers of labels; () for all."""
        value = self.values.get("returned_token_ids") or ()
        if not isinstance(value, (list, tuple)) or not all(type(i) is int and 0 <= i < num_labels for i in value):
            raise ConfigError(
                f"pooler_config.returned_token_ids must be labels from 0 to {num_labels - 1}, got {value!r}"
            )
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"pooler_config.{name} must be a number, got {value!r}")
        return float(value)


_NO_FILES = SentenceTransformersFacts(pooling="", normalize=True)
_TASKS: Mapping[PoolingKind, tuple[PoolingTask, ...]] = {
    "embed": ("embed", "token_embed"),
    "classify": ("classify",),
    "token_embed": ("token_embed",),
    "token_classify": ("token_classify",),
}
_TORCH_ACTIVATIONS: Mapping[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_PROBLEMS: Mapping[str, ScoreActivation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_KNOWN = frozenset(PoolerConfig.__annotations__)
