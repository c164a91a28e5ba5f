"""Requests and ops for the sampler's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.ops.interface import Ops
from octavo.ops.reference import ReferenceOps
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData

MakeRequest = Callable[..., NewRequestData]


@pytest.fixture(params=["reference", "native"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "reference":
        return ReferenceOps()
    pytest.importorskip("octavo._native")
    from octavo.ops.native import NativeOps

    return NativeOps()


@pytest.fixture
def make_request() -> MakeRequest:
    """Return a function that makes a request from sampling parameters, prompt, output, seed and end ids."""

    def make(
        prompt: list[int] | None = None,
        output: list[int] | None = None,
        seed: int = 0,
        eos: int | None = None,
        stop_token_ids: list[int] | None = None,
        bad_words: list[list[int]] | None = None,
        **params: Any,
    ) -> NewRequestData:
        sampling_params = SamplingParams(**{"max_tokens": None} | params)
        if bad_words is not None:
            sampling_params.set_bad_words_token_ids(bad_words)
        prompt = [1, 2, 3] if prompt is None else prompt
        return NewRequestData(
            request_id=f"request-{seed}",
            token_ids=prompt + (output or []),
            num_prompt_tokens=len(prompt),
            sampling_params=sampling_params,
            seed=seed,
            eos_token_id=eos,
            stop_token_ids=stop_token_ids or [],
            block_ids=([],),
            num_computed_tokens=0,
        )

    return make
