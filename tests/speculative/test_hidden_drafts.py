"""Guesses from the model's hidden states: Medusa, EAGLE, EAGLE-3, MTP.

What they guess is compared with the published formulas, and what comes out with what comes without guesses.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from octavo import LLM, EngineArgs, SamplingParams, StructuredOutputsParams
from octavo.engine.resolve import resolve
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.lora.request import LoRARequest
from octavo.worker.draft_step import DraftLengths, DraftStep
from tests.engine.processes import comparable
from tests.invariance.workloads import random_workload
from tests.lora.adapters import write_adapter
from tests.speculative.draft_weights import (
    Guess,
    Target,
    draft_config,
    eagle,
    eagle3,
    medusa,
    numpy_solve,
    write_mimo,
    write_weights,
)
from tests.speculative.oracle import guessing
from tests.speculative.test_identity import ROOMY, count, run
from tests.tiny_models import VOCAB_SIZE, gemma3_config, llama_config, write_tiny_model

METHODS = ("medusa", "medusa, published", "eagle", "eagle, gemma", "eagle3", "eagle3, own sizes", "mtp")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    """A model, the wish that it is guessed for, and what must be guessed."""

    model: str
    wish: dict
    guess: Guess


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> Iterator[dict[str, Case]]:
    root = tmp_path_factory.mktemp("drafts")
    seven = write_tiny_model(root / "seven", llama_config(num_hidden_layers=7), 1)
    llama, gemma = write_tiny_model(root / "llama", llama_config(), 2), write_tiny_model(root / "g", gemma3_config(), 3)
    torch.manual_seed(4)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the sizes are tiny
    targets = {folder: Target(str(folder)) for folder in (seven, llama, gemma)}
    made = {
        "medusa": (llama, "medusa", medusa(root / "medusa", targets[llama], published=False)),
        "medusa, published": (gemma, "medusa", medusa(root / "medusa-2", targets[gemma], published=True)),
        "eagle": (llama, "eagle", eagle(root / "eagle", targets[llama])),
        "eagle, gemma": (gemma, "eagle", eagle(root / "eagle-2", targets[gemma])),
        "eagle3": (seven, "eagle3", eagle3(root / "eagle3", targets[seven], own_sizes=False, layer_ids=None)),
        "eagle3, own sizes": (llama, "eagle3", eagle3(root / "three", targets[llama], True, layer_ids=(0, 1, 2))),
    }
    cases = {
        name: Case(str(folder), {"method": method, "model": path, "num_speculative_tokens": 3}, guess)
        for name, (folder, method, (path, guess)) in made.items()
    }
    path, guess = write_mimo(root / "mimo")
    yield {**cases, "mtp": Case(path, {"method": "mtp", "num_speculative_tokens": 3}, guess)}
    torch.set_num_threads(num_threads)


@pytest.fixture
def guesses_all():
    with guessing():
        yield


@pytest.fixture
def made_guesses(monkeypatch) -> list[tuple[list[int], list[int]]]:
    """What was known and what was guessed behind it, of every row in every step."""
    made: list[tuple[list[int], list[int]]] = []
    propose = DraftStep.propose

    def recorded(self: DraftStep, new_token_ids):
        proposals = propose(self, new_token_ids)
        for request_id, guesses in proposals.items():
            row = self._rows.row(request_id)
            made.append((self._rows.token_ids[row, : self._rows.num_tokens[row]].tolist(), list(guesses)))
        return proposals

    monkeypatch.setattr(DraftStep, "propose", recorded)
    return made


def check(made: list[tuple[list[int], list[int]]], case: Case) -> None:
    """Compare a part of them: PyTorch computes each from the beginning."""
    for known, guesses in made[:: len(made) // 16 + 1]:
        assert guesses == case.guess(known, len(guesses)), f"behind {len(known)} tokens"


@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize(("name", "eager"), [*((name, False) for name in METHODS), ("eagle3", True), ("mtp", True)])
def test_guesses_are_those_of_the_published_formula(cases, name, eager, made_guesses):
    """Prompts longer than a step beside others, the same again from the prefix cache, and with little room."""
    case = cases[name]
    engine = {**ROOMY, "max_num_batched_tokens": 16, "max_num_seqs": 4, "block_size": 8, "enforce_eager": eager}
    llm = LLM(case.model, speculative_config=case.wish, **engine)
    prompts = [list(range(3, 45)), [9], list(range(60, 77))]
    for _ in range(2):
        run(llm, prompts, GREEDY)
    assert len(made_guesses) > 40 and {len(guesses) for _, guesses in made_guesses} == {3}
    assert count(llm, "prefix_cache_hits") > 0
    check(made_guesses, case)


@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "mtp"])
def test_preempted_requests_are_guessed_as_well_as_others(cases, name, made_guesses, monkeypatch):
    """And rows of which more or less is guessed."""
    case = cases[name]
    monkeypatch.setattr(DraftLengths, "lengths", lambda self, rows: [row % 4 for row in rows])
    engine = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4}
    llm = LLM(case.model, speculative_config=case.wish, num_gpu_blocks_override=48, **engine)
    prompts = [list(range(start, start + 20)) for start in (3, 40, 80, 120)]
    run(llm, prompts, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    assert count(llm, "num_preemptions") > 0 and {len(guesses) for _, guesses in made_guesses} == {1, 2, 3}
    check(made_guesses, case)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "mtp"])
def test_prompts_are_read_while_no_guess_pays(cases, name, made_guesses, monkeypatch):
    case = cases[name]
    monkeypatch.setattr(DraftLengths, "lengths", lambda self, rows: [3] * len(rows))
    llm = LLM(case.model, speculative_config=case.wish, **{**ROOMY, "max_num_batched_tokens": 32, "block_size": 8})
    prompt = list(range(3, 50))
    monkeypatch.setattr(DraftLengths, "pays", lambda self, batch_size: False)
    run(llm, [prompt], GREEDY)
    assert not made_guesses
    monkeypatch.setattr(DraftLengths, "pays", lambda self, batch_size: True)
    run(llm, [[*prompt[:40], 7]], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    run(llm, [prompt], GREEDY)
    assert made_guesses and count(llm, "prefix_cache_hits") >= 40
    check(made_guesses[1:], case)


@pytest.mark.native_ops
@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize(("seed", "name"), [*enumerate(METHODS), *enumerate(METHODS[4:], 7)])
def test_any_request_in_any_engine(cases, seed, name):
    case, workload = cases[name], random_workload(seed)
    plain = run(LLM(case.model, **ROOMY, **workload.arithmetic), workload.prompts, workload.params)
    engine = {**workload.engine, "num_gpu_blocks_override": 2 * workload.engine["num_gpu_blocks_override"]}
    llm = LLM(case.model, speculative_config=case.wish, **engine, **workload.arithmetic)
    for cache in ("cold", "warm"):
        guessed = run(llm, workload.prompts, workload.params, priority=workload.priorities)
        for params, expected, got in zip(workload.params, plain, guessed, strict=True):
            assert comparable(got) == comparable(expected), f"{cache} cache: {params}"
    assert count(llm, "spec_decode_num_draft_tokens") > 0


@pytest.mark.native_ops
@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "mtp"])
def test_grammars_bind_guesses_too(cases, name):
    case = cases[name]
    wishes = [StructuredOutputsParams(regex="(ab|cd){3,9}x?"), StructuredOutputsParams(choice=["red", "blue"]), None]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=30, structured_outputs=wish, logprobs=1)
              for wish in wishes for t in (0.0, 1.0)]  # fmt: skip
    prompts = [[7, 8, 9, start] for start in range(3, 3 + len(params))]
    plain = run(LLM(case.model, **ROOMY), prompts, params)
    llm = LLM(case.model, speculative_config=case.wish, **{**ROOMY, "max_num_batched_tokens": 32})
    assert [comparable(output) for output in run(llm, prompts, params)] == [comparable(output) for output in plain]


@pytest.mark.native_ops
@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3"])
def test_adapters_are_guessed_for_too(cases, tmp_path, name):
    case = cases[name]
    adapter = LoRARequest("one", 1, str(write_adapter(tmp_path / "adapter", Path(case.model), projections=("o_proj",))))
    prompts = [{"prompt_token_ids": list(range(3, 40))}, {"prompt_token_ids": [5, 6, 7]}] * 2
    requests = [adapter, None, None, adapter]
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=20, ignore_eos=True, logprobs=1, prompt_logprobs=0)
    options = {**ROOMY, "max_num_batched_tokens": 32, "enable_lora": True}
    plain, guessed = (
        LLM(case.model, speculative_config=wish, **options).generate(
            prompts, params, use_tqdm=False, lora_request=requests
        )
        for wish in (None, case.wish)
    )
    assert [comparable(output) for output in guessed] == [comparable(output) for output in plain]
    assert comparable(guessed[0]) != comparable(guessed[2])


# -- weights that are right --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certain(tmp_path_factory) -> dict[str, Case]:
    """A model whose next token follows from the last alone, with weights that know it: all guesses are right.

    Its layers add nothing, and tokens are as many as features, so that any map from token to token is a matrix.
    """
    root, size = tmp_path_factory.mktemp("certain"), VOCAB_SIZE
    sizes = {"hidden_size": size, "num_hidden_layers": 3, "intermediate_size": 32}
    folder = write_tiny_model(root / "model", llama_config(**sizes), 6)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
    config = json.loads((folder / "config.json").read_text())
    write_weights(folder, config, tensors)
    embedding, lm_head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    follows = (embedding @ lm_head.T).argmax(-1)
    model, identity, zeros = str(folder), torch.eye(size), torch.zeros(size, size)
    layer = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if "model.layers.0" in name}
    del layer["layers.0.input_layernorm.weight"]
    wishes = {"eagle": ({}, {"fc.weight": torch.cat([identity, zeros], 1), **layer})}
    wishes["medusa"] = _certain_heads(embedding, follows)
    wide = {name.replace("layers.0", "midlayer"): tensor for name, tensor in layer.items()}
    for name in ("q", "k", "v"):
        key = f"midlayer.self_attn.{name}_proj.weight"
        wide[key] = torch.cat([wide[key], wide[key]], 1)
    ahead = numpy_solve(embedding, embedding[follows])  # of a token's embedding, that of the next
    ones = {f"midlayer.{name}.weight": torch.ones(size) for name in ("input_layernorm", "hidden_norm")}
    fc = torch.cat([zeros, ahead, zeros], 1)
    wishes["eagle3"] = (
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 3], "architectures": ["LlamaForCausalLMEagle3"]},
        {"fc.weight": fc, "norm.weight": torch.ones(size), **wide, **ones},
    )
    cases = {}
    for method, (changes, weights) in wishes.items():
        own = {**draft_config(size, intermediate_size=32), **changes} if method != "medusa" else changes
        path = write_weights(root / method, own, weights)
        wish = {"method": method, "model": path, "num_speculative_tokens": 1 if method == "eagle3" else 3}
        cases[method] = Case(model, wish, lambda known, number: [])
    prefix, mimo = "model.mtp_layers.0.", root / "mimo"
    shutil.copytree(folder, mimo)
    biases = {
        f"model.layers.{index}.self_attn.{name}_proj.bias": torch.zeros(64 if name == "q" else 32)
        for index in range(3)
        for name in ("q", "k", "v")
    }
    whole = {**tensors, **biases, f"{prefix}input_proj.weight": torch.cat([zeros, identity], 1)}
    whole |= {n.replace("layers.0", "mtp_layers.0"): t.clone() for n, t in whole.items() if "model.layers.0" in n}
    whole |= {f"{prefix}{name}_layernorm.weight": torch.ones(size) for name in ("token", "hidden", "final")}
    write_weights(mimo, {**config, "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}, whole)
    return {**cases, "mtp": Case(str(mimo), {"method": "mtp", "num_speculative_tokens": 3}, lambda known, number: [])}


def _certain_heads(embedding: torch.Tensor, follows: torch.Tensor) -> tuple[dict, dict[str, torch.Tensor]]:
    states = embedding * torch.rsqrt((embedding * embedding).mean(-1, keepdim=True))
    weights, to_come = {}, follows
    for head in range(3):
        to_come = follows[to_come]
        weights[f"{head}.0.linear.weight"] = torch.zeros(VOCAB_SIZE, VOCAB_SIZE)
        weights[f"{head}.0.linear.bias"] = torch.zeros(VOCAB_SIZE)
        weights[f"{head}.1.weight"] = numpy_solve(states, torch.eye(VOCAB_SIZE)[to_come])
    return {"medusa_num_heads": 3, "medusa_num_layers": 1}, weights


@pytest.mark.usefixtures("guesses_all")
@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3", "mtp"])
def test_weights_that_know_what_comes_guess_it(certain, method):
    case = certain[method]
    llm = LLM(case.model, speculative_config=case.wish, **{**ROOMY, "max_num_batched_tokens": 64})
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True)
    prompts = [list(range(3, 90)), [5, 6], [7, 8]]
    expected = [c.token_ids for output in run(LLM(case.model, **ROOMY), prompts, params) for c in output.outputs]
    for round_number in range(2):
        got = [c.token_ids for output in run(llm, prompts, params) for c in output.outputs]
        assert got == expected
        num_guesses = count(llm, "spec_decode_num_draft_tokens")
        assert num_guesses > 50 * (round_number + 1)
        assert count(llm, "spec_decode_num_accepted_tokens") == num_guesses
        core = llm.llm_engine.engine_core.engine_core
        core.sleep(2)
        core.wake_up()


# -- what does not fit -------------------------------------------------------------------------------------------------


def changed(case: Case, folder: Path, config: dict, without: str = "", moved: str = "", **wish) -> dict:
    """Return the wish for a copy of the case's weights with another config, without a tensor, and with one too high."""
    source = Path(case.wish["model"])
    tensors = load_file(source / "model.safetensors")
    tensors.pop(without, None)
    if moved:
        tensors[moved] = tensors[moved] + VOCAB_SIZE
    written = write_weights(folder, {**json.loads((source / "config.json").read_text()), **config}, tensors)
    return {**case.wish, "model": written, **wish}


@pytest.mark.parametrize(
    ("name", "config", "without", "wish", "words"),
    [
        ("eagle", {"hidden_size": 32}, "", {}, "hidden_size 32, but .* is 64"),
        ("eagle", {"vocab_size": 300}, "", {}, "vocab_size 300, but .* is 320"),
        ("eagle", {"architectures": ["EagleMiniCPMForCausalLM"]}, "", {}, "EagleMiniCPMForCausalLM are not built"),
        ("eagle", {}, "layers.1.mlp.up_proj.weight", {}, "no tensor 'layers.1.mlp.up_proj.weight'"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "", {}, r"0 to 7, got \[1, 2, 9\]"),
        ("eagle3", {"target_hidden_size": 48}, "", {}, "hidden_size 48, but .* is 64"),
        ("eagle3, own sizes", {"eagle_aux_hidden_state_layer_ids": None}, "", {}, r"got \[2, 1, -1\], the default"),
        ("eagle3, own sizes", {}, "d2t", {}, "draft_vocab_size is 200 of 320, but .* 'd2t'"),
        ("eagle3, own sizes", {}, "", {"moved": "d2t"}, "d2t leads to tokens .*, beyond the vocabulary of 320"),
        ("eagle3", {}, "midlayer.hidden_norm.weight", {}, "no tensor 'layers.0"),
        ("medusa", {}, "", {"moved": "token_map"}, "token_map leads to tokens .*, beyond the vocabulary of 320"),
        ("medusa", {"hidden_size": 48}, "", {}, "hidden_size 48, but .* is 64"),
        ("medusa", {}, "", {"num_speculative_tokens": 4}, "=4, but .* has 3 Medusa heads"),
        ("medusa", {}, "medusa_heads.lm_heads.1.weight", {}, "no tensor 'medusa_heads.lm_heads.1.weight'"),
        ("eagle", {}, "", {"tensor_parallel_size": 2}, "one worker, not 2"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_are_loaded(cases, tmp_path, name, config, without, wish, words):
    wished = changed(cases[name], tmp_path / "changed", config, without, **wish)
    engine = {"tensor_parallel_size": wished.pop("tensor_parallel_size", 1)}
    with pytest.raises((ConfigError, CheckpointError, UnsupportedError), match=words):
        resolve(EngineArgs(cases[name].model, speculative_config=wished, **engine, **ROOMY))


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "mtp"])
def test_guesses_beyond_the_last_position_of_a_short_model(cases, name):
    """More guesses than positions; the steps in which costs are measured are no longer either."""
    case, params = cases[name], SamplingParams(temperature=0, ignore_eos=True)
    plain = run(LLM(case.model, max_model_len=9, **ROOMY), [[5, 6], [7] * 8], params)
    with guessing():
        llm = LLM(case.model, speculative_config=case.wish, max_model_len=9, **ROOMY)
        assert [comparable(output) for output in run(llm, [[5, 6], [7] * 8], params)] == [*map(comparable, plain)]


def test_a_model_without_mtp_layers_is_refused(cases):
    with pytest.raises(UnsupportedError, match="MTP layers of LlamaForCausalLM are not built"):
        LLM(cases["eagle"].model, speculative_config={"method": "mtp", "num_speculative_tokens": 1}, **ROOMY)
