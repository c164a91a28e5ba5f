"""SmolLM2's quantised file as it is, against the same weights in float32."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import LLM, SamplingParams

pytestmark = pytest.mark.model

# Ordinary prose of 170 tokens or so.
TEXT = (
    "The lighthouse stood at the end of a long stone pier, and for more than a hundred years somebody had climbed its "
    "stairs every evening to light the lamp. In the winter of that year the keeper was a woman named Anna, who had "
    "learned the work from her father. She kept a careful record of the weather, of the ships that passed, and of the "
    "birds that rested on the railing. One night in February the wind came from the north with snow, and she saw a "
    "small boat that had lost its way between the rocks. She rang the bell, and she moved the lamp so that its light "
    "fell on the narrow passage to the harbour. When the boat had come in, the three men in it thanked her, and the "
    "oldest of them said that he had known her father."
)
QUESTIONS = ["What is the capital of France?", "How many legs does a spider have?", "Name a fruit that is yellow."]


@pytest.fixture(scope="module")
def engines() -> dict[str, LLM]:
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 2**26, "kv_cache_dtype": "float32"}
    return {c: LLM("smollm2-135m-instruct", compute=c, **options) for c in ("exact", "auto")}


def test_rounded_activations_hardly_change_the_probability_of_a_text(engines: dict[str, LLM]) -> None:
    """Twenty candidates a position hold most of the probability: the divergence over them bounds the error well."""
    tables = {}
    for compute, llm in engines.items():
        (output,) = llm.generate(TEXT, SamplingParams(max_tokens=1, prompt_logprobs=20), use_tqdm=False)
        assert output.prompt_logprobs is not None
        tables[compute] = [{i: entry.logprob for i, entry in row.items()} for row in output.prompt_logprobs if row]
    divergences = []
    for exact, rounded in zip(tables["exact"], tables["auto"], strict=True):
        common = exact.keys() & rounded.keys()
        p, q = (np.array([table[i] for i in common]) for table in (exact, rounded))
        divergences.append(float((np.exp(p) * (p - q)).sum() + (np.exp(q) - np.exp(p)).sum()))
    assert len(divergences) > 150
    assert 0 < np.mean(divergences) < 0.0029  # what llama.cpp's rounding costs on the same file


def test_answers_stay_the_same(engines: dict[str, LLM]) -> None:
    params = SamplingParams(temperature=0, max_tokens=16)
    answers = {}
    for compute, llm in engines.items():
        outputs = [llm.chat([{"role": "user", "content": q}], params, use_tqdm=False)[0] for q in QUESTIONS]
        answers[compute] = [output.outputs[0].text for output in outputs]
    assert "Paris" in answers["exact"][0]
    same = [a.split()[:4] == b.split()[:4] for a, b in zip(answers["exact"], answers["auto"], strict=True)]
    assert sum(same) >= 2, answers
