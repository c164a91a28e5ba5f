"""The offline API on a fake executor: many requests in order, checks before anything runs, interrupts, services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import octavo
from octavo import LLM, RequestOutputKind, SamplingParams
from octavo.errors import ConfigError, InvalidRequestError, RequestFailedError, UnsupportedError
from tests.engine.fakes import EOS, FakeEngine, fake_engine, mixes, says

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


def echo_first(prompt, output, seed):
    """Say the prompt's first letter as often as the prompt has letters."""
    return prompt[0] if len(output) < len(prompt) else EOS


def fake_llm(next_token=echo_first, **options) -> tuple[LLM, FakeEngine]:
    fake = fake_engine(next_token, **options)
    return LLM.from_engine(fake.engine), fake


def texts(outputs) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def generate(llm: LLM, prompts, params=GREEDY, **options):
    return llm.generate(prompts, params, use_tqdm=False, **options)


# -- generate ----------------------------------------------------------------------------------------------------------


def test_results_come_in_request_order_whoever_finishes_first():
    llm, _ = fake_llm(max_num_seqs=3)
    assert texts(generate(llm, ["cccccc", "a", "bbb", "dd", "eeee"])) == ["cccccc", "a", "bbb", "dd", "eeee"]


@pytest.mark.parametrize("prompt", ["ab", [97, 98], (97, 98), {"prompt": "ab"}, {"prompt_token_ids": [97, 98]}])
def test_one_prompt_of_any_form_gives_a_list_of_one(prompt):
    llm, _ = fake_llm()
    assert texts(generate(llm, prompt)) == ["aa"]


def test_a_list_may_mix_forms():
    llm, _ = fake_llm()
    assert texts(generate(llm, ["ab", [98], {"prompt_token_ids": [99, 99]}])) == ["aa", "b", "cc"]


@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_prompts_may_come_in_any_ordered_collection(kind):
    llm, _ = fake_llm()
    assert texts(generate(llm, kind(["ab", "bb"]))) == ["aa", "bb"]
    assert texts(generate(llm, kind([[97, 98], [98, 98]]))) == ["aa", "bb"]
    assert texts(generate(llm, kind([97, 98]))) == ["aa"]


def test_no_prompts_give_no_results():
    llm, fake = fake_llm()
    assert generate(llm, []) == []
    assert fake.executor.steps == []


def test_sampling_params_one_per_prompt():
    llm, _ = fake_llm()
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 2)]
    assert texts(generate(llm, ["aaa", "bbb"], params)) == ["a", "bb"]


@pytest.mark.parametrize("params", [[GREEDY], [GREEDY] * 3, "greedy", {"temperature": 0}, [GREEDY, None]])
def test_wrong_sampling_params_are_refused(params):
    llm, fake = fake_llm()
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        generate(llm, ["a", "b"], params)
    assert fake.executor.steps == []


def test_without_params_the_models_defaults_apply():
    llm, fake = fake_llm(default_sampling_params={"temperature": 0.5, "top_k": 3, "max_tokens": 2})
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_k, defaults.max_tokens) == (0.5, 3, 2)
    assert texts(generate(llm, "aaaa", None)) == ["aa"]
    assert fake.executor.steps[0].scheduled_new_requests[0].sampling_params.top_k == 3


def test_explicit_params_do_not_mix_with_the_models_defaults():
    """vllm#15241: a temperature given explicitly must not be undone by the generation config's top_k = 1."""
    llm, fake = fake_llm(default_sampling_params={"temperature": 0.1, "top_k": 1})
    generate(llm, "a", SamplingParams(temperature=2.0))
    used = fake.executor.steps[0].scheduled_new_requests[0].sampling_params
    assert (used.temperature, used.top_k) == (2.0, 0)


def test_the_users_params_keep_their_output_kind():
    llm, _ = fake_llm()
    params = SamplingParams(output_kind=RequestOutputKind.DELTA, temperature=0.0)
    (output,) = generate(llm, "aaa", params)
    assert output.outputs[0].text == "aaa"
    assert params.output_kind is RequestOutputKind.DELTA


def test_requests_without_a_seed_are_reproducible_from_the_engines_seed():
    params = SamplingParams(temperature=1.0, max_tokens=8)

    def run(seed):
        llm, _ = fake_llm(mixes, seed=seed)
        return texts(generate(llm, ["hi", "hi"], params))

    assert run(0) == run(0)
    assert len({*run(0), *run(1)}) == 4


BAD_PROMPTS = ["", [], [-1], [10**6], [2**63], [1.5], [True], {"prompt_token_ids": []}, {"text": "x"}, None, [1] * 64]


@pytest.mark.parametrize("bad", BAD_PROMPTS, ids=repr)
def test_a_bad_prompt_among_good_ones_runs_nothing_and_is_named(bad):
    llm, fake = fake_llm()
    with pytest.raises(InvalidRequestError, match="prompt 1 of 3"):
        generate(llm, ["good", bad, "good"])
    assert fake.executor.steps == []
    assert not fake.engine.has_unfinished_requests()
    assert texts(generate(llm, ["aa"])) == ["aa"]


def test_priorities_one_for_all_or_one_per_prompt():
    llm, fake = fake_llm(policy="priority", max_num_seqs=1)
    generate(llm, ["a", "b", "c"], priority=[3, 1, 2])
    order = [new.token_ids[0] for step in fake.executor.steps for new in step.scheduled_new_requests]
    assert bytes(order) == b"bca"
    assert texts(generate(llm, ["a", "b"], priority=5)) == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="priority"):
        generate(llm, ["a", "b"], priority=[1])


def test_priorities_need_the_policy():
    llm, _ = fake_llm()
    with pytest.raises(InvalidRequestError, match="scheduling_policy"):
        generate(llm, "a", priority=[1])


def test_tokenization_options_apply():
    llm, _ = fake_llm()
    (output,) = generate(llm, "abcdef", tokenization_kwargs={"truncate_prompt_tokens": 2})
    assert output.prompt_token_ids == list(b"ef")


def test_what_is_not_built_is_refused():
    llm, _ = fake_llm()
    with pytest.raises(UnsupportedError, match="mm_processor_kwargs"):
        generate(llm, "a", mm_processor_kwargs={"x": 1})


def test_a_failed_request_is_a_result_with_an_error():
    llm, fake = fake_llm()
    fake.executor.failing = {"1-": "NaN logits"}
    outputs = generate(llm, ["a", "b", "c"])
    assert [o.outputs[0].finish_reason for o in outputs] == ["stop", "error", "stop"]
    assert outputs[1].outputs[0].stop_reason == "NaN logits"


# -- progress ----------------------------------------------------------------------------------------------------------


class RecordingBar:
    def __init__(self, total, **options):
        self.total, self.num_done, self.postfix, self.is_closed = total, 0, "", False
        RecordingBar.last = self

    def update(self, count):
        self.num_done += count

    def close(self):
        self.is_closed = True


def test_the_progress_bar_counts_requests_and_tokens():
    llm, _ = fake_llm()
    llm.generate(["aa", "bb", "cc"], GREEDY, use_tqdm=RecordingBar)
    bar = RecordingBar.last
    assert (bar.total, bar.num_done, bar.is_closed) == (3, 3, True)
    assert "input: " in bar.postfix and "output: " in bar.postfix and "tokens/s" in bar.postfix


def test_there_is_no_bar_where_there_is_no_standard_error(monkeypatch):
    """As in a daemon, or under pythonw: the bar raised AttributeError."""
    llm, _ = fake_llm()
    monkeypatch.setattr("sys.stderr", None)
    assert llm.generate("a", GREEDY)[0].finished


def test_the_default_bar_is_tqdm_on_standard_error(capsys):
    llm, _ = fake_llm()
    llm.generate(["aa"], GREEDY)
    assert "Processed prompts" in capsys.readouterr().err
    generate(llm, ["aa"])
    assert capsys.readouterr().err == ""


# -- interrupts --------------------------------------------------------------------------------------------------------


def press_ctrl_c_once():
    pressed = []

    def hook(step):
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return hook


@pytest.mark.parametrize("moment", ["before_execute", "before_sample"])
def test_ctrl_c_aborts_what_is_in_flight_and_leaves_a_usable_engine(moment):
    llm, fake = fake_llm(mixes)
    setattr(fake.executor, moment, press_ctrl_c_once())
    with pytest.raises(KeyboardInterrupt):
        generate(llm, ["a long prompt"] * 20)
    assert len(fake.executor.steps) == 1  # the step ended, no other began
    assert not fake.engine.has_unfinished_requests()
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(generate(llm, "hi")[0].outputs[0].token_ids) == 20


def test_ctrl_c_on_the_last_step_is_not_lost():
    llm, fake = fake_llm()
    fake.executor.before_sample = press_ctrl_c_once()
    with pytest.raises(KeyboardInterrupt):
        generate(llm, "a", SamplingParams(max_tokens=1))
    assert texts(generate(llm, "aa")) == ["aa"]


def test_an_interrupt_raised_inside_a_step_leaves_a_usable_engine():
    llm, fake = fake_llm()

    def interrupt(step):
        fake.executor.before_execute = lambda step: None
        raise KeyboardInterrupt

    fake.executor.before_execute = interrupt
    with pytest.raises(KeyboardInterrupt):
        generate(llm, ["aa", "bb"])
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    assert texts(generate(llm, ["aa", "bb"])) == ["aa", "bb"]


# -- enqueue -----------------------------------------------------------------------------------------------------------


def test_enqueued_requests_run_when_waited_for_in_order():
    llm, fake = fake_llm()
    ids = llm.enqueue(["bbb", "a"], GREEDY) + llm.enqueue("cc", GREEDY)
    assert fake.executor.steps == []
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids
    assert texts(outputs) == ["bbb", "a", "cc"]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_call_in_between_returns_only_its_own_results():
    llm, _ = fake_llm()
    llm.enqueue(["a", "bbbbbbbb"], GREEDY)
    assert texts(generate(llm, "ccc")) == ["ccc"]
    assert texts(llm.wait_for_completion(use_tqdm=False)) == ["a", "bbbbbbbb"]


def test_waiting_for_a_request_that_was_aborted_raises():
    llm, fake = fake_llm()
    ids = llm.enqueue(["a", "b"], GREEDY)
    fake.engine.abort_request(ids[0])
    with pytest.raises(RequestFailedError, match=f"requests {ids[0]} were aborted"):
        llm.wait_for_completion(use_tqdm=False)


# -- chat --------------------------------------------------------------------------------------------------------------

USER = [{"role": "user", "content": "hi"}]


def chat_prompt(llm: LLM, messages, **options) -> str:
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, **options)
    assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt)
    return output.prompt


def test_a_conversation_is_rendered_with_the_header_of_the_answer():
    llm, _ = fake_llm(says("ok"))
    assert chat_prompt(llm, USER) == "<turn>user:hi\n<turn>assistant:"
    assert chat_prompt(llm, USER, add_generation_prompt=False) == "<turn>user:hi\n"


def test_many_conversations_give_results_in_order():
    llm, _ = fake_llm(says("ok"))
    conversations = [USER, [{"role": "user", "content": "ho"}], [*USER, {"role": "assistant", "content": "x"}, *USER]]
    outputs = llm.chat(conversations, GREEDY, use_tqdm=False)
    assert [output.prompt.count("<turn>") for output in outputs] == [2, 2, 4]
    assert texts(outputs) == ["ok"] * 3


def test_the_last_message_can_be_continued():
    llm, _ = fake_llm(says("ok"))
    messages = [*USER, {"role": "assistant", "content": "The answer"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert chat_prompt(llm, messages, **options) == "<turn>user:hi\n<turn>assistant:The answer"
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        chat_prompt(llm, messages, continue_final_message=True)


def test_a_template_and_its_arguments_can_be_given():
    fake = fake_engine(says("ok"))
    template = "{{ greeting }}{{ messages[0]['content'] }}{{ tools[0]['function']['name'] if tools }}"
    by_call = LLM.from_engine(fake.engine)
    options = {
        "chat_template_kwargs": {"greeting": "Oh "},
        "tools": [{"type": "function", "function": {"name": "tool"}}],
    }
    assert chat_prompt(by_call, USER, chat_template=template, **options) == "Oh hitool"
    by_engine = LLM.from_engine(fake.engine, chat_template=template)
    assert chat_prompt(by_engine, USER, chat_template_kwargs={"greeting": "Ah "}) == "Ah hi"


@pytest.mark.parametrize("messages", [[], "hi", None, [[]], ["hi"], [{"content": "no role"}], [USER, []]])
def test_wrong_conversations_are_refused(messages):
    llm, fake = fake_llm()
    with pytest.raises(InvalidRequestError):
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert fake.executor.steps == []


def test_a_wrong_content_format_is_refused():
    llm, _ = fake_llm()
    with pytest.raises(InvalidRequestError, match="chat_template_content_format"):
        llm.chat(USER, GREEDY, chat_template_content_format="xml")


# -- services ----------------------------------------------------------------------------------------------------------


def test_services_reach_the_engine():
    llm, fake = fake_llm()
    assert llm.get_world_size() == llm.get_world_size(include_dp=False) == 1
    assert llm.reset_prefix_cache()
    assert llm.collective_rpc("name", args=(1,)) == ["name"]
    llm.apply_model(str)
    assert fake.executor.calls[-1] == ("apply_model", None, (str,), None)
    generate(llm, "aa")
    assert {metric.name for metric in llm.get_metrics()} >= {"vllm:num_requests_running", "vllm:generation_tokens"}


def test_an_engine_that_counts_nothing_has_no_metrics():
    llm, fake = fake_llm()
    fake.engine.metrics.enabled = False
    generate(llm, "aa")
    with pytest.raises(ConfigError, match="disable_log_stats"):
        llm.get_metrics()


def test_resetting_a_connector_is_refused():
    llm, _ = fake_llm()
    with pytest.raises(UnsupportedError, match="reset_connector"):
        llm.reset_prefix_cache(reset_connector=True)


def test_an_unknown_engine_option_is_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match=r"max_model_length.*max_model_len"):
        LLM(model="x", max_model_length=5)


# -- import ------------------------------------------------------------------------------------------------------------


def test_importing_octavo_loads_nothing_heavy():
    heavy = ("numpy", "tokenizers", "msgspec", "tqdm", "jinja2")
    code = f"import sys, octavo; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_exists():
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    assert set(octavo.__all__) <= set(dir(octavo))
    assert octavo.AsyncLLMEngine is octavo.AsyncLLM and octavo.AsyncEngineArgs is octavo.EngineArgs
    for module in ("sampling_params", "outputs", "inputs", "engine.arg_utils"):  # as in vLLM's own examples
        same = import_module(f"octavo.{module}")
        assert all(getattr(same, name) is getattr(octavo, name) for name in same.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LLMM'"):
        _ = octavo.LLMM
