"""Writes calls the way each family of models does: the other direction of the parsers, written from the templates."""

# ruff: noqa: RUF001  (DeepSeek's and Step's markers are written with full-width bars)
from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
Encoder = Callable[[Sequence[Call]], str]


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spaced(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def plain(value: object) -> str:
    """A value as tags hold it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else spaced(value)


def obj(call: Call, key: str = "arguments", dump: Callable[[object], str] = spaced) -> str:
    return f'{{"name": {spaced(call[0])}, "{key}": {dump(call[1])}}}'


def array(calls: Sequence[Call], key: str = "arguments") -> str:
    return f"[{', '.join(obj(call, key) for call in calls)}]"


def each(text: Callable[[Call], str], joiner: str = "\n", around: tuple[str, str] = ("", "")) -> Encoder:
    return lambda calls: around[0] + joiner.join(text(call) for call in calls) + around[1]


def function_tags(call: Call) -> str:
    parameters = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in call[1].items())
    return f"<function={call[0]}>\n{parameters}</function>"


def pairs(call: Call) -> str:
    parameters = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in call[1].items()
    )
    return f"<tool_call>{call[0]}\n{parameters}</tool_call>"


def tight_pairs(call: Call) -> str:
    parameters = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{plain(value)}</arg_value>" for key, value in call[1].items()
    )
    return f"<tool_call>{call[0]}{parameters}</tool_call>"


def invoke(call: Call) -> str:
    parameters = "".join(f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in call[1].items())
    return f'<invoke name="{call[0]}">\n{parameters}</invoke>'


def dsml(call: Call) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{plain(value)}'
        "</｜DSML｜parameter>\n"
        for key, value in call[1].items()
    )
    return f'<｜DSML｜invoke name="{call[0]}">\n{parameters}</｜DSML｜invoke>'


def spaced_dsml(call: Call) -> str:
    return re.sub(r"(</?｜DSML｜)(invoke|parameter)", r"\1 \2", dsml(call))


def named_pairs(call: Call) -> str:
    return pairs(call).replace(f"<tool_call>{call[0]}\n", f"<tool_call>{call[0]}<tool_sep>", 1)


def ifm_pairs(call: Call, *, is_typed: bool = False) -> str:
    parameters = "".join(
        f"<ifm|arg_key>{key}</ifm|arg_key>"
        + (f"<ifm|arg_type>{json_type(value)}</ifm|arg_type>" if is_typed else "")
        + f"<ifm|arg_value>{plain(value)}</ifm|arg_value>\n"
        for key, value in call[1].items()
    )
    return f"<ifm|tool_call>{call[0]}\n{parameters}</ifm|tool_call>"


def json_type(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array[any]", dict: "object"}
    return names.get(type(value), "null")


def param_tags(call: Call) -> str:
    parameters = "".join(
        f'<param name="{key}">{f"<![CDATA[{text}]]>" if "<" in (text := plain(value)) else text}</param>'
        for key, value in call[1].items()
    )
    return f'<function name="{call[0]}">{parameters}</function>'


def xtml(calls: Sequence[Call]) -> str:
    def argument(key: str, value: object) -> str:
        kind = json_type(value).partition("[")[0].replace("integer", "number")
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{plain(value)}<|close|>argument<|sep|>'

    text = "".join(
        f'<|open|>call tool="{name}" index="{index}"<|sep|>'
        f"{''.join(argument(key, value) for key, value in arguments.items())}<|close|>call<|sep|>"
        for index, (name, arguments) in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{text}<|close|>tools<|sep|>"


def plamo(call: Call) -> str:
    return (
        f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{call[0]}<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{spaced(call[1])}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
    )


MINIMAX = "]<]minimax[>["


def nested(value: object) -> str:
    """Tags inside tags; what is empty is written as JSON."""
    if isinstance(value, dict) and value:
        return "".join(nested_tag(key, item) for key, item in value.items())
    if isinstance(value, list) and value:
        return "".join(nested_tag("item", item) for item in value)
    return plain(value)


def nested_tag(key: str, value: object) -> str:
    return f"{MINIMAX}<{key}>{nested(value)}{MINIMAX}</{key}>"


def nested_invoke(call: Call) -> str:
    parameters = "\n".join(nested_tag(key, value) for key, value in call[1].items())
    return f'{MINIMAX}<invoke name="{call[0]}">{parameters}{MINIMAX}</invoke>'


def steptml(call: Call) -> str:
    parameters = "".join(
        f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>' for key, value in call[1].items()
    )
    return (
        f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{call[0]}">{parameters}</steptml:invoke>'
        "<｜tool_call_end｜>"
    )


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def python_list(calls: Sequence[Call]) -> str:
    return f"[{', '.join(python_call(call) for call in calls)}]"


def braces(value: object, mark: str) -> str:
    if isinstance(value, str):
        return f"{mark}{value}{mark}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{braces(item, mark)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(braces(item, mark) for item in value) + "]"
    return compact(value)


def harmony(calls: Sequence[Call]) -> str:
    """One message a call, in both places in which the recipient may stand."""
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{spaced(arguments)}<|call|>"
        if index % 2 == 0
        else f" to=functions.{name}<|channel|>commentary json<|message|>{compact(arguments)}<|call|>"
        for index, (name, arguments) in enumerate(calls)
    )


def kimi(calls: Sequence[Call]) -> str:
    text = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{spaced(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>"


def cohere(calls: Sequence[Call]) -> str:
    texts = (
        f'    {{"tool_call_id": "{index}", "tool_name": {spaced(name)}, "parameters": {spaced(arguments)}}}'
        for index, (name, arguments) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(texts) + "\n]<|END_ACTION|>"


def wrapped(tag: str, text: Callable[[Call], str]) -> Encoder:
    return each(lambda call: f"<{tag}>\n{text(call)}\n</{tag}>")


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

# parser name -> ways in which its models write calls; JSON first where arguments are passed on as they are written
JSON_ENCODERS: dict[str, tuple[Encoder, ...]] = {
    "hermes": (wrapped("tool_call", obj), each(lambda c: f"<tool_call>{obj(c, dump=pretty)}</tool_call>", "")),
    "qwen3_json": (wrapped("tool_call", obj),),
    "granite4": (wrapped("tool_call", obj),),
    "ernie45": (wrapped("tool_call", obj),),
    "plamo3": (
        each(plamo, "", ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>")),
        each(plamo),
    ),
    "llama3_json": (
        each(lambda c: obj(c, "parameters"), "; "),
        each(lambda c: obj(c, "parameters", pretty), ";", ("<|python_tag|>", "")),
        each(lambda c: f'{{"type": "function", "name": "{c[0]}", "parameters": {compact(c[1])}}}', "\n"),
    ),
    "llama4_json": (each(lambda c: obj(c, "parameters"), ";"),),
    "granite": (lambda calls: f"<|tool_call|>{array(calls)}", lambda calls: f"<tool_call>{array(calls)}", array),
    "granite-20b-fc": (each(lambda c: f"<function_call> {obj(c)}", " "),),
    "phi4_mini_json": (lambda calls: f"functools{array(calls)}", lambda calls: f"<|tool_call|>{array(calls)}"),
    "minimax_m1": (each(obj, "\n", ("<tool_calls>\n", "\n</tool_calls>")),),
    "jamba": (lambda calls: f"<tool_calls>{array(calls)}</tool_calls>",),
    "hunyuan_a13b": (lambda calls: f"<tool_calls>{array(calls)}</tool_calls>",),
    "longcat": (wrapped("longcat_tool_call", obj),),
    "internlm": (each(lambda c: f"<|action_start|><|plugin|>\n{obj(c, 'parameters')}<|action_end|>", "\n"),),
    "gigachat3": (each(lambda c: f"function call<|role_sep|>\n{obj(c)}"),),
    "xlam": (array, lambda calls: f"[TOOL_CALLS]{array(calls)}", wrapped("tool_call", obj)),
    "cohere_command3": (cohere,),
    "cohere_command4": (cohere,),
    "apertus": (
        lambda calls: (
            "<|tools_prefix|>["
            + ", ".join(f"{{{spaced(name)}: {spaced(arguments)}}}" for name, arguments in calls)
            + "]<|tools_suffix|>"
        ),
    ),
    "json": (
        array,
        each(obj, "\n"),
        each(lambda c: f'{{"type": "function", "function": {obj(c)}}}', "\n"),
        each(lambda c: f'{{"arguments": {compact(c[1])}, "name": "{c[0]}"}}', ", "),
    ),
    "mistral": (
        lambda calls: f"[TOOL_CALLS] {array(calls)}",
        each(lambda c: f"[TOOL_CALLS]{c[0]}[ARGS]{spaced(c[1])}", ""),
        each(lambda c: f"[TOOL_CALLS]{c[0]}{spaced(c[1])}", ""),
        each(lambda c: f"[TOOL_CALLS]{c[0]}[CALL_ID]abcDEF123[ARGS]{compact(c[1])}", ""),
    ),
    "deepseek_v3": (
        each(
            lambda c: (
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{c[0]}\n```json\n{spaced(c[1])}\n```<｜tool▁call▁end｜>"
            ),
            "\n",
            _DEEPSEEK,
        ),
    ),
    "deepseek_v31": (
        each(lambda c: f"<｜tool▁call▁begin｜>{c[0]}<｜tool▁sep｜>{spaced(c[1])}<｜tool▁call▁end｜>", "", _DEEPSEEK),
    ),
    "kimi_k2": (kimi,),
    "openai": (harmony,),
}
TYPED_ENCODERS: dict[str, tuple[Encoder, ...]] = {
    "qwen3_coder": (wrapped("tool_call", function_tags), each(function_tags)),
    "qwen3_xml": (wrapped("tool_call", function_tags),),
    "step3p5": (wrapped("tool_call", function_tags),),
    "mimo": (wrapped("tool_call", function_tags),),
    "seed_oss": (wrapped("seed:tool_call", function_tags),),
    "glm45": (each(pairs),),
    "glm47": (each(tight_pairs, ""),),
    "ling3": (each(tight_pairs, ""),),
    "poolside_v1": (each(pairs),),
    "hy_v3": (each(named_pairs, "\n", ("<tool_calls>\n", "\n</tool_calls>")),),
    "hy_v4": (each(tight_pairs, "", ("<tool_calls>", "</tool_calls>")),),
    "k2_horizon": (
        each(ifm_pairs, "\n", ("<ifm|tool_calls>\n", "\n</ifm|tool_calls>")),
        each(lambda c: ifm_pairs(c, is_typed=True), "", ("<ifm|tool_calls>", "</ifm|tool_calls>")),
        each(lambda c: f"<ifm|tool_call>{obj(c)}</ifm|tool_call>", "\n", ("<ifm|tool_calls>\n", "\n</ifm|tool_calls>")),
    ),
    "minicpm5": (each(param_tags),),
    "kimi_k3": (xtml,),
    "minimax_m3": (each(nested_invoke, "\n", (f"{MINIMAX}<tool_call>\n", f"\n{MINIMAX}</tool_call>")),),
    "dots": (
        each(invoke, "\n", ("<dots_function_call>\n", "\n</dots_function_call>")),
        wrapped("dots_function_call", obj),
    ),
    "deepseek_v4": (each(dsml, "\n", ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>")),),
    "deepseek_v41": (each(spaced_dsml, "\n", ("<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>")),),
    "minimax_m2": (each(invoke, "\n", ("<minimax:tool_call>\n", "\n</minimax:tool_call>")),),
    "deepseek_v32": (each(dsml, "\n", ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>")),),
    "step3": (each(steptml, "", ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")),),
    "pythonic": (python_list,),
    "llama4_pythonic": (python_list, lambda calls: f"<|python_start|>{python_list(calls)}<|python_end|>"),
    "olmo3": (each(python_call, "\n", ("<function_calls>", "</function_calls>")),),
    "lfm2": (lambda calls: f"<|tool_call_start|>{python_list(calls)}<|tool_call_end|>",),
    "functiongemma": (
        each(lambda c: f"<start_function_call>call:{c[0]}{braces(c[1], '<escape>')}<end_function_call>", ""),
    ),
    "gemma4": (
        each(lambda c: f"<|tool_call>call:{c[0]}{braces(c[1], chr(60) + '|' + chr(34) + '|>')}<tool_call|>", ""),
    ),
}
ENCODERS = {**JSON_ENCODERS, **TYPED_ENCODERS}
