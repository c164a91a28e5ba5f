"""Adapters that PEFT itself wrote, beside what PEFT computes with them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from octavo import LLM, SamplingParams
from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.catalog import pull
from octavo.lora.request import LoRARequest
from tests.lora.test_engine import PROMPTS, SMALL, prompt_logprobs
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0, prompt_logprobs=0, detokenize=False)
LAYOUTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all-linear": {"target_modules": "all-linear", "r": 16, "lora_alpha": 24},
    "rank-1": {"target_modules": ["o_proj", "down_proj"], "r": 1, "lora_alpha": 1},
    "rank-64-rslora": {"target_modules": ["k_proj", "gate_proj", "up_proj"], "r": 64, "use_rslora": True},
    "embedding": {"target_modules": ["embed_tokens", "up_proj"], "r": 20, "rank_pattern": {"embed_tokens": 3}},
    "lm_head": {"target_modules": ["lm_head"], "r": 6},
    "both tables": {"target_modules": ["embed_tokens", "lm_head", "v_proj"], "r": 5},
    "expression": {"target_modules": r".*\.1\.(self_attn|mlp)\.(v|up)_proj", "r": 3},
    "one-layer": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1], "lora_dropout": 0.3},
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["v_proj"], "r": 5},
    "patterns": {
        "target_modules": "all-linear",
        "r": 4,
        "rank_pattern": {"q_proj": 7, "layers.1.mlp.up_proj": 2, r"^model\.layers\.0\.mlp\.down_proj": 33},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 40, r".*\.o_proj": 3.5},
    },
}


def write_peft(model: Any, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Save an adapter whose matrices are all random; return PEFT's model as it reads that again.

    model: folder, or one of Transformers
    """
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) if isinstance(model, Path) else model
    torch.manual_seed(seed)
    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options)
    tuned = get_peft_model(copy.deepcopy(base), config)
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    tuned.save_pretrained(folder)
    return PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()


@torch.no_grad()
def logprobs_of(tuned: Any, token_ids: list[int]) -> torch.Tensor:
    return tuned(torch.tensor([token_ids])).logits[0].float().log_softmax(-1)


def check(output: Any, tuned: Any, atol: float) -> None:
    """Compare a greedy output with PEFT: what it says of the prompt, and that no token is beaten by another one."""
    prompt, generated = output.prompt_token_ids, output.outputs[0].token_ids
    expected = logprobs_of(tuned, prompt + generated)
    given = expected[range(len(prompt) - 1), prompt[1:]].tolist()
    assert prompt_logprobs(output) == pytest.approx(given, abs=atol)
    following = expected[len(prompt) - 1 : -1]
    assert (following.amax(-1) - following[range(len(generated)), generated]).max() < atol


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "config", [llama_config(tie_word_embeddings=False), gemma3_config()], ids=["llama", "gemma3, tied"]
)
def test_adapters_compute_what_peft_computes(config, layout, tmp_path):
    model = write_tiny_model(tmp_path / "model", config)
    tuned = write_peft(model, tmp_path / "adapter", **LAYOUTS[layout])
    llm = LLM(str(model), compute="exact", enable_lora=True, max_lora_rank=64, **SMALL)
    request = LoRARequest("one", 1, str(tmp_path / "adapter"))
    output, plain = llm.generate(PROMPTS[3:4] * 2, PARAMS, use_tqdm=False, lora_request=[request, None])
    check(output, tuned, 1e-3)
    assert prompt_logprobs(output) != pytest.approx(prompt_logprobs(plain), abs=0.05)


def test_types_of_files_are_kept_unless_asked_otherwise(tmp_path):
    model = write_tiny_model(tmp_path / "model", llama_config())
    requests, tuned = [], []
    for number, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
        options = {"seed": number, "dtype": dtype, "target_modules": "all-linear", "r": 8 + number}
        tuned.append(write_peft(model, tmp_path / str(number), **options))
        requests.append(LoRARequest(f"a{number}", number + 1, str(tmp_path / str(number))))
    kept, rounded = (
        LLM(str(model), compute="exact", enable_lora=True, max_loras=3, lora_dtype=lora_dtype, **SMALL).generate(
            PROMPTS[:3], PARAMS, use_tqdm=False, lora_request=requests
        )
        for lora_dtype in ("auto", "bfloat16")
    )
    for output, model_of_peft in zip(kept, tuned, strict=True):
        check(output, model_of_peft, 1e-3)
    assert prompt_logprobs(rounded[0]) == prompt_logprobs(kept[0])
    for one, other in zip(rounded[1:], kept[1:], strict=True):
        assert prompt_logprobs(one) != prompt_logprobs(other)
        assert prompt_logprobs(one) == pytest.approx(prompt_logprobs(other), abs=0.1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"trainable_token_indices": [3, 4]}, "trainable_token_indices"),
    ],
)
def test_what_peft_can_and_octavo_cannot_is_refused_by_name(options, text, tmp_path):
    model = write_tiny_model(tmp_path / "model", llama_config())
    write_peft(model, tmp_path / "adapter", **{"target_modules": ["q_proj"], **options})
    llm = LLM(str(model), enable_lora=True, **SMALL)
    with pytest.raises((UnsupportedError, CheckpointError), match=text):
        llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False, lora_request=LoRARequest("a", 1, str(tmp_path / "adapter")))


@pytest.mark.parametrize(
    "options", [{"rank_pattern": {"[": 4}}, {"rank_pattern": ["q_proj"]}, {"alpha_pattern": 5}, {"lora_alpha": 10**400}]
)
def test_a_config_of_nonsense_is_refused_and_ends_no_engine(options, tmp_path):
    model = write_tiny_model(tmp_path / "model", llama_config())
    write_peft(model, tmp_path / "adapter", target_modules=["q_proj"])
    llm = LLM(str(model), enable_lora=True, **SMALL)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    with pytest.raises(CheckpointError, match=next(iter(options))):
        llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False, lora_request=LoRARequest("a", 1, str(path.parent)))
    llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)


@pytest.mark.model
def test_a_real_model_with_several_adapters_at_once(tmp_path):
    path = pull("smollm2-135m-instruct")
    base = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    options = {"max_model_len": 512, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**26}
    llm = LLM(str(path), compute="exact", enable_lora=True, max_loras=2, **options)
    layouts: list[dict[str, Any]] = [{"target_modules": "all-linear", "r": 16}, {"use_rslora": True, "r": 8}]
    requests, tuned = [], []
    for number, layout in enumerate(layouts):
        folder = tmp_path / str(number)
        tuned.append(write_peft(base, folder, seed=number, **layout))
        requests.append(LoRARequest(f"a{number}", number + 1, str(folder)))
    prompts = ["The capital of France is", "def add(a, b):"]
    for output, model in zip(llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=requests), tuned, strict=True):
        check(output, model, 5e-3)


@pytest.mark.model
def test_8_bit_adapters_of_a_quantised_model_are_as_near_to_peft_as_float_ones(tmp_path):
    """What a quantised model's inputs lose by rounding is more than what its adapters lose."""
    path = pull("smollm2-135m-instruct")
    base = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tuned = write_peft(base, tmp_path / "adapter", target_modules="all-linear", r=16)
    options = {"max_model_len": 512, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**26, "enable_lora": True}
    prompts = ["The capital of France is Paris, and that of Italy", "def add(a, b):\n    return a + b\n"] * 2
    request = LoRARequest("one", 1, str(tmp_path / "adapter"))
    given, errors = {}, {}
    for lora_dtype in ("auto", "int8", "float32"):
        llm = LLM(str(path), lora_dtype=lora_dtype, **options)
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=[request] * 2 + [None] * 2)
        given[lora_dtype] = [prompt_logprobs(output) for output in outputs]
        differences = []
        for output in outputs[:2]:
            ids = output.prompt_token_ids
            expected = logprobs_of(tuned, ids)[range(len(ids) - 1), ids[1:]]
            differences += (expected - torch.tensor(prompt_logprobs(output))).abs().tolist()
        errors[lora_dtype] = sum(differences) / len(differences)
    assert given["auto"] == given["int8"] and given["int8"][:2] != given["float32"][:2]
    assert given["int8"][2:] == given["float32"][2:] != given["int8"][:2]
    assert errors["int8"] < 1.5 * errors["float32"] and errors["int8"] < 0.1
