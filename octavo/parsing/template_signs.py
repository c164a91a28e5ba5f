"""Which formats a chat template describes, seen by the markers in its text."""

# ruff: noqa: RUF001  (DeepSeek's and Step's markers are written with full-width bars)
from __future__ import annotations

# (texts that all have to be in the template, parser); the first that fits counts, so special ones come first
_TOOL_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|start|>assistant", "<|channel|>"), "openai"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("｜DSML｜tool_calls",), "deepseek_v4"),
    (("｜DSML｜ calls",), "deepseek_v41"),
    (("｜DSML｜",), "deepseek_v32"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("<steptml:invoke",), "step3"),
    (("[TOOL_CALLS]",), "mistral"),
    (("]<]minimax[>[",), "minimax_m3"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<|open|>", "<|close|>", "<|sep|>"), "kimi_k3"),
    (("<ifm|tool_call",), "k2_horizon"),
    (("<|plamo:begin_tool_request",), "plamo3"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<longcat_tool_call>",), "longcat"),
    (("<dots_function_call>",), "dots"),
    (("<|tools_prefix|>",), "apertus"),
    (("<tool_sep>", "<arg_key>"), "hy_v3"),
    (("<tool_calls>", "<arg_key>"), "hy_v4"),
    (("<arg_key>",), "glm45"),
    (('<function name="', '<param name="'), "minicpm5"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>",), "gemma4"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|START_ACTION|>", "<|START_TEXT|>"), "cohere_command4"),
    (("<|START_ACTION|>",), "cohere_command3"),
    (("<|action_start|>",), "internlm"),
    (("<function_calls>",), "olmo3"),
    (("<tool_calls>",), "minimax_m1"),
    (("<|tool|>", "<|/tool|>"), "phi4_mini_json"),
    (("<|tool_call|>",), "granite"),
    (("<tool_call>",), "hermes"),
    (("<function_call>",), "granite-20b-fc"),
    (("functools",), "phi4_mini_json"),
    (("<|header_start|>", "<|python_start|>"), "llama4_pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
)
_REASONING_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "analysis"), "openai_gptoss"),
    (("<|channel>thought",), "gemma4"),
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<mm:think>",), "minimax_m3"),
    (("<|START_THINKING|>", "<|START_TEXT|>"), "cohere_command4"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<|open|>", "<|close|>", "<|sep|>"), "kimi_k3"),
    (("<ifm|think",), "k2_horizon"),
    (("<|plamo:begin_think",), "plamo3"),
    (("Here is my thought process:",), "granite"),
    (("<think>", "<answer>"), "hunyuan_a13b"),
    (("<think>", "<response>"), "ernie45"),
    (("<think>", "<minimax:tool_call>"), "minimax_m2"),
    (("<think>", "<|tool_calls_section_begin|>"), "kimi_k2"),
    (("<think>", "<tool_sep>", "<arg_key>"), "hy_v3"),
    (("<think>", "<tool_calls>", "<arg_key>"), "hy_v4"),
    (("<think>", "<arg_key>"), "glm45"),
    (("<think>", "<｜tool▁calls▁begin｜>"), "deepseek_v3"),
    # The prompt tells whether it opens the reasoning; otherwise these models write <think> themselves. A template with
    # only </think> takes old reasoning out of conversations, whether its model reasons (DeepSeek R1) or not (V3).
    (("<think>",), "qwen3"),
)


def tool_name_for(chat_template: str) -> str | None:
    return _first(_TOOL_SIGNS, chat_template)


def reasoning_name_for(chat_template: str) -> str | None:
    return _first(_REASONING_SIGNS, chat_template)


def _first(signs: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str | None:
    return next((name for texts, name in signs if all(text in template for text in texts)), None)
