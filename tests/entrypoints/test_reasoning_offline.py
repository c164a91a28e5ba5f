"""Reasoning and tools in the Python API: budgets, grammars after the reasoning, preemptions, tools in chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from octavo.types.structured_params import StructuredOutputsParams
from tests.cases.conftest import metric
from tests.tiny_models import llama_config, write_tiny_model

THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def thinking_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose chat template begins the reasoning."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "thinking", llama_config())
    settings_file = folder / "tokenizer_config.json"
    settings = {**json.loads(settings_file.read_text()), "chat_template": THINKING}
    settings_file.write_text(json.dumps(settings))
    return folder


def start(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"max_model_len": 256, "kv_cache_memory_bytes": 2**24, **options})


@pytest.fixture(scope="module")
def llm(thinking_folder: Path) -> LLM:
    return start(thinking_folder)


def end_of(llm: LLM) -> list[int]:
    return llm.get_tokenizer().encode("</think>", add_special_tokens=False)


BUDGET: dict[str, Any] = {"temperature": 1, "seed": 3, "max_tokens": 40, "ignore_eos": True, "thinking_token_budget": 6}


def test_a_budget_ends_the_reasoning_of_chats_and_of_prompts(llm: LLM):
    params = SamplingParams(**BUDGET)
    (chat,) = llm.chat([{"role": "user", "content": "Hi"}], params, use_tqdm=False)
    (text,) = llm.generate("Hi<think>\n", params, use_tqdm=False)
    (ids,) = llm.generate({"prompt_token_ids": text.prompt_token_ids}, params, use_tqdm=False)
    end = end_of(llm)
    for output in (chat, text, ids):
        assert output.outputs[0].token_ids[6 : 6 + len(end)] == end
    assert chat.outputs[0].token_ids == text.outputs[0].token_ids == ids.outputs[0].token_ids
    free = SamplingParams(**{**BUDGET, "thinking_token_budget": -1})
    (unlimited,) = llm.generate("Hi<think>\n", free, use_tqdm=False)
    assert unlimited.outputs[0].token_ids[:6] == text.outputs[0].token_ids[:6]
    assert unlimited.outputs[0].token_ids != text.outputs[0].token_ids


def test_reasoning_that_the_prompt_has_closed_has_no_budget_to_spend(llm: LLM):
    params = SamplingParams(**BUDGET)
    free = SamplingParams(**{**BUDGET, "thinking_token_budget": None})
    prompt = "Hi<think>\n\n</think>\n\n"
    (limited,) = llm.generate(prompt, params, use_tqdm=False)
    (unlimited,) = llm.generate(prompt, free, use_tqdm=False)
    assert limited.outputs[0].token_ids == unlimited.outputs[0].token_ids


def test_a_preempted_request_spends_its_budget_once(thinking_folder: Path):
    prompts = [f"{'abcdefgh'[i] * 12}<think>\n" for i in range(8)]
    params = [SamplingParams(**{**BUDGET, "thinking_token_budget": 4 * i, "seed": i}) for i in range(8)]

    def answers(llm: LLM) -> list[list[int]]:
        return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, params, use_tqdm=False)]

    ample, tight = start(thinking_folder), start(thinking_folder, num_gpu_blocks_override=24, block_size=8)
    expected = answers(ample)
    assert answers(tight) == expected and metric(tight, "num_preemptions") > 0
    end = end_of(ample)
    for i, token_ids in enumerate(expected):
        assert token_ids[4 * i : 4 * i + len(end)] == end


def test_a_grammar_begins_behind_the_reasoning(llm: LLM):
    params = SamplingParams(**{**BUDGET, "ignore_eos": False})
    params.structured_outputs = StructuredOutputsParams(choice=["yes", "no"])
    (output,) = llm.generate("Hi<think>\n", params, use_tqdm=False)
    reasoning, _, answer = output.outputs[0].text.partition("</think>")
    assert reasoning and answer in ("yes", "no") and output.outputs[0].finish_reason == "stop"


def test_the_format_can_be_named_or_switched_off(thinking_folder: Path, tmp_path: Path):
    params = SamplingParams(**BUDGET)
    off = start(thinking_folder, reasoning_parser="none")
    with pytest.raises(InvalidRequestError, match="thinking_token_budget needs a model") as caught:
        off.generate("Hi<think>\n", params, use_tqdm=False)
    assert caught.value.parameter == "thinking_token_budget"
    other = start(thinking_folder, reasoning_parser="seed_oss")
    (output,) = other.generate("Hi<seed:think>", params, use_tqdm=False)
    end = other.get_tokenizer().encode("</seed:think>", add_special_tokens=False)
    assert output.outputs[0].token_ids[6 : 6 + len(end)] == end
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from octavo.parsing.reasoning import ReasoningFormat\n"
        "from octavo.parsing.registry import register_reasoning_format\n"
        "register_reasoning_format(ReasoningFormat('mine', opening=('((',), closing=('))',)))\n"
    )
    mine = start(thinking_folder, reasoning_parser="mine", reasoning_parser_plugin=str(plugin))
    (output,) = mine.generate("Hi((", params, use_tqdm=False)
    assert "))" in output.outputs[0].text
    with pytest.raises(ConfigError, match="reasoning-parser 'nobody'"):
        start(thinking_folder, reasoning_parser="nobody")
    with pytest.raises(UnsupportedError, match="not built"):
        start(thinking_folder, reasoning_parser="minicpmv")


@pytest.mark.parametrize("budget", [-2, 1.5, "many", True])
def test_budgets_out_of_range_are_refused(budget: Any):
    with pytest.raises(InvalidRequestError, match="thinking_token_budget"):
        SamplingParams(thinking_token_budget=budget)


def test_tools_in_a_chat_are_described_or_refused(llm: LLM):
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequestError, match="does not describe tools"):
        llm.chat(messages, SamplingParams(max_tokens=1), tools=[TOOL], use_tqdm=False)
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + THINKING
    (output,) = llm.chat(messages, SamplingParams(max_tokens=1), tools=[TOOL], chat_template=template, use_tqdm=False)
    assert '"clock"' in output.prompt
