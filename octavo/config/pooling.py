"""What a pooling model is used for and how: the decision, and the wishes under the names of vLLM's PoolerConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

# MAX, MEAN_SQRT_LEN and WEIGHTED_MEAN (later tokens weigh more) are those of sentence-transformers.
SequencePooling = Literal["CLS", "LAST", "MEAN", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN"]
TokenPooling = Literal["ALL", "STEP"]
ScoreActivation = Literal["identity", "sigmoid", "softmax"]


class PoolerConfig(TypedDict, total=False):
    """EngineArgs.pooler_config, for those who build it as vLLM's class of this name."""

    pooling_type: str
    seq_pooling_type: str
    tok_pooling_type: str
    use_activation: bool
    dimensions: int
    logit_mean: float
    logit_sigma: float
    step_tag_id: int
    returned_token_ids: list[int]
    normalize: bool  # use_activation's older names
    softmax: bool
    activation: bool
    logit_bias: float  # logit_mean's older name


@dataclass(frozen=True)
class PoolingConfig:
    """A model that makes vectors or scores of prompts.

    tasks: what it can do, as PoolingParams.task names it; the first is its own
    embedding_size: of what is pooled, layers on top included
    score_activation: what use_activation means for scores; embeddings are normalised
    use_activation: when a request does not say it
    matryoshka: lengths to which embeddings may be cut, () for any; None: for none
    is_causal: a decoder, whose requests use the KV cache
    max_text_tokens: longer texts are cut, unless a request says how; None: they are refused
    prompts: texts put before an input, by name; pools_prompt: whether their tokens count in the pooling
    """

    tasks: tuple[str, ...]
    sequence_pooling: SequencePooling
    token_pooling: TokenPooling
    embedding_size: int
    score_activation: ScoreActivation
    use_activation: bool
    is_causal: bool
    labels: tuple[str, ...] = ()
    dimensions: int | None = None
    matryoshka: tuple[int, ...] | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    max_text_tokens: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompt: bool = True

    @property
    def computes_in_pieces(self) -> bool:
        """Whether a prompt can be computed in several steps, and begin with what the prefix cache has."""
        return self.is_causal and self.sequence_pooling == "LAST"

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the model scores a pair of texts by itself."""
        return "classify" in self.tasks and len(self.labels) == 1
