"""PoolingParams: what a user may ask of a pooling model, with vLLM's names.

Values are checked on construction; whether the model can do it is checked on the engine's input side.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import msgspec

from octavo.errors import UnsupportedError
from octavo.types import sampling_checks as checks
from octavo.types.parameter_names import NamedParameters
from octavo.types.sampling_params import RequestOutputKind, SamplingParams

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
POOLING_TASKS: tuple[PoolingTask, ...] = ("embed", "classify", "token_embed", "token_classify")


class PoolingParams(
    msgspec.Struct,
    metaclass=NamedParameters,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What to make of a prompt's hidden states. Raises InvalidRequestError, with `parameter` set.

    use_activation: normalise embeddings, turn scores into probabilities; None: as the model says
    dimensions: length of embeddings, for models that were trained to be cut (Matryoshka)
    task: None: the model's own
    step_tag_id: token_classify: only at tokens with this id; returned_token_ids: only these labels
    skip_reading_prefix_cache: compute everything
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    task: PoolingTask | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    requires_token_ids: bool = False  # vLLM's own use; ids are always there
    late_interaction_params: Any = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.use_activation is not None:
            checks.as_bool("use_activation", self.use_activation)
        self.dimensions = checks.as_optional_int("dimensions", self.dimensions, 1)
        if self.task is not None and self.task not in POOLING_TASKS:
            raise checks.wrong("task", f"one of {', '.join(POOLING_TASKS)}", self.task)
        self.step_tag_id = checks.as_optional_int("step_tag_id", self.step_tag_id, 0)
        for token_id in self.returned_token_ids or ():
            checks.as_int("returned_token_ids", token_id, 0)
        for name in ("late_interaction_params", "extra_kwargs"):
            if getattr(self, name):
                raise UnsupportedError(f"{name} is not supported: it is vLLM's own means; leave it out")


@functools.cache
def neutral_sampling_params(skip_reading_prefix_cache: bool | None) -> SamplingParams:
    """Return what pooling requests have in place of sampling parameters: one result, told at the end. Shared."""
    return SamplingParams(
        max_tokens=1,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=skip_reading_prefix_cache,
    )
