"""A second model guesses: results stay what they are, and its own guesses come true where it is the same model."""

from __future__ import annotations

import shutil

import pytest
from safetensors.torch import load_file, save_file

from octavo import LLM, EngineArgs, SamplingParams
from octavo.engine.resolve import resolve
from octavo.errors import CheckpointError, ConfigError
from tests.engine.processes import comparable
from tests.invariance.workloads import random_workload
from tests.speculative.oracle import guessing
from tests.speculative.test_identity import ROOMY, count, run
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    configs = {
        "llama": (llama_config(), 0),
        "gemma3": (gemma3_config(), 0),
        "small": (llama_config(num_hidden_layers=1, num_key_value_heads=1), 3),  # pages of half the size
        "wide": (llama_config(head_dim=24, num_hidden_layers=1), 3),  # pages that do not divide the others
        "short": (llama_config(max_position_embeddings=100), 0),
        "other words": (llama_config(vocab_size=300), 0),
    }
    return {n: str(write_tiny_model(tmp_path_factory.mktemp("m"), c, seed)) for n, (c, seed) in configs.items()}


@pytest.fixture
def guesses_all():
    with guessing():
        yield


def wish(model: str, num_tokens: int = 4) -> dict:
    return {"method": "draft_model", "model": model, "num_speculative_tokens": num_tokens}


@pytest.mark.native_ops
@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize(
    ("seed", "model", "draft"),
    [
        (0, "gemma3", "llama"), (1, "llama", "llama"), (2, "gemma3", "small"), (3, "llama", "small"),
        (4, "gemma3", "gemma3"), (5, "llama", "wide"), (6, "llama", "gemma3"), (7, "llama", "llama"),
    ],
)  # fmt: skip
def test_any_request_in_any_engine(models, seed, model, draft):
    workload = random_workload(seed)
    plain = run(LLM(models[model], **ROOMY, **workload.arithmetic), workload.prompts, workload.params)
    engine = {**workload.engine, "num_gpu_blocks_override": 2 * workload.engine["num_gpu_blocks_override"]}
    llm = LLM(models[model], speculative_config=wish(models[draft]), **engine, **workload.arithmetic)
    for cache in ("cold", "warm"):
        guessed = run(llm, workload.prompts, workload.params, priority=workload.priorities)
        for params, expected, got in zip(workload.params, plain, guessed, strict=True):
            assert comparable(got) == comparable(expected), f"{cache} cache: {params}"
    assert count(llm, "spec_decode_num_draft_tokens") > 0


@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_a_model_guesses_itself_right(models, model):
    """Prompts longer than a step, a warm cache, and sleep: what it reads and stores is what the model does."""
    llm = LLM(
        models[model],
        speculative_config=wish(models[model]),
        **{**ROOMY, "max_num_batched_tokens": 16, "max_num_seqs": 4},
    )
    prompts = [[*range(3, 60)], [*range(3, 50), 7], [9]]
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True)
    for round_number in range(3):
        run(llm, prompts, params)
        num_guesses = count(llm, "spec_decode_num_draft_tokens")
        assert num_guesses > 80 * (round_number + 1)
        assert count(llm, "spec_decode_num_accepted_tokens") == num_guesses, f"a wrong guess in round {round_number}"
        if round_number == 1:
            core = llm.llm_engine.engine_core.engine_core
            core.sleep(2)
            core.wake_up()


def test_guesses_that_are_not_worth_it_end(models):
    llm = LLM(models["llama"], speculative_config=wish(models["small"], 8), **ROOMY)
    run(llm, [[5, 6, 7]], SamplingParams(temperature=1, seed=1, max_tokens=300, ignore_eos=True))
    assert count(llm, "spec_decode_num_draft_tokens") < 100


@pytest.mark.parametrize(("draft", "words"), [("other words", "vocabulary of 300"), ("short", "100 positions")])
def test_a_draft_model_that_does_not_fit_is_refused(models, draft, words):
    with pytest.raises(ConfigError, match=words):
        LLM(models["llama"], speculative_config=wish(models[draft]), **ROOMY)


def test_a_draft_model_without_some_tensor_is_refused_before_any_is_loaded(models, tmp_path):
    shutil.copytree(models["small"], tmp_path / "draft")
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"draft has no tensor 'model\.norm\.weight'"):
        resolve(EngineArgs(models["llama"], speculative_config=wish(str(tmp_path / "draft")), **ROOMY))
