"""The tool-call formats, one declaration each. Names are those of vLLM 0.32's tool parsers.

Sources: the models' chat templates and model cards, as far as they are public, and vLLM's documentation of its parsers.
"""

# ruff: noqa: RUF001  (DeepSeek's and Step's markers are written with full-width bars)
from __future__ import annotations

from dataclasses import replace

from octavo.parsing.brace_calls import BraceCalls
from octavo.parsing.formats import CallBody, CallSyntax, ToolFormat
from octavo.parsing.json_calls import JsonCalls
from octavo.parsing.named_calls import JsonOr, KeyedCalls, NamedCalls
from octavo.parsing.nested_tags import NestedTags
from octavo.parsing.python_calls import PythonCalls
from octavo.parsing.schema_types import ANY_TYPE, ONLY_STRING
from octavo.parsing.writer import kimi_id, mistral_id
from octavo.parsing.xml_calls import XmlCalls

_JSON = JsonCalls()
_FUNCTION_TAGS = XmlCalls(
    before_name="<function=",
    after_name=(">",),
    before_key="<parameter=",
    after_key=">",
    after_value="</parameter>",
    after_call=("</function>", "</tool_call>", "</seed:tool_call>"),
    is_padded=True,
)
_ARGUMENT_PAIRS = XmlCalls(
    before_name="",
    after_name=("\n", "<arg_key>", "</tool_call>"),
    before_key="<arg_key>",
    after_key="</arg_key>",
    before_value="<arg_value>",
    after_value="</arg_value>",
    after_call=("</tool_call>",),
    undeclared=ANY_TYPE,
)
_INVOKE_TAGS = XmlCalls(
    before_name='<invoke name="',
    after_name=('">',),
    before_key='<parameter name="',
    after_key='">',
    after_value="</parameter>",
    after_call=("</invoke>", "</minimax:tool_call>", "</dots_function_call>"),
    is_padded=True,
    undeclared=ANY_TYPE,
)
_NAMED_PAIRS = replace(_ARGUMENT_PAIRS, after_name=("<tool_sep>",))
_IFM_PAIRS = XmlCalls(
    before_name="",
    after_name=("\n", "<ifm|arg_key>", "</ifm|tool_call>"),
    before_key="<ifm|arg_key>",
    after_key="</ifm|arg_key>",
    before_type="<ifm|arg_type>",
    after_type="</ifm|arg_type>",
    before_value="<ifm|arg_value>",
    after_value="</ifm|arg_value>",
    after_call=("</ifm|tool_call>",),
    undeclared=ANY_TYPE,
)
_PARAM_TAGS = XmlCalls(
    before_name='<function name="',
    after_name=('">',),
    before_key='<param name="',
    after_key='">',
    after_value="</param>",
    after_call=("</function>",),
    before_quoted="<![CDATA[",
    after_quoted="]]>",
    undeclared=ANY_TYPE,
)
_XTML_TYPES = ("number", "integer", "boolean", "null", "object", "array")
_XTML_TAGS = XmlCalls(
    before_name='<|open|>call tool="',
    after_name=('"',),
    name_rest="<|sep|>",
    before_key='<|open|>argument key="',
    after_key='"<|sep|>',
    after_value="<|close|>argument<|sep|>",
    after_call=("<|close|>call<|sep|>",),
    typed_keys=(
        ('" type="string"<|sep|>', ONLY_STRING),
        *((f'" type="{name}"<|sep|>', ANY_TYPE) for name in _XTML_TYPES),
    ),
)
_STEP_TAGS = XmlCalls(
    before_name='function<｜tool_sep｜><steptml:invoke name="',
    after_name=('">',),
    before_key='<steptml:parameter name="',
    after_key='">',
    after_value="</steptml:parameter>",
    after_call=("</steptml:invoke>",),
    undeclared=ANY_TYPE,
)
_MINIMAX_MARK = "]<]minimax[>["
_PLAMO_ARGUMENTS = "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
_DEEPSEEK_OPENING = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DEEPSEEK_CLOSING = ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")


_LLAMA_SYNTAX = CallSyntax('{"name": ', '{{"name": {name}, "parameters": ', "}")


def _tagged(
    name: str, body: CallBody, tag: str = "tool_call", bare: tuple[str, ...] = (), syntax: CallSyntax | None = None
) -> ToolFormat:
    """Return the format of calls between `<tag>` and `</tag>`."""
    return ToolFormat(name, body, opening=(f"<{tag}>",), closing=(f"</{tag}>",), bare=bare, syntax=syntax)


def _hermes_syntax(tag: str = "tool_call") -> CallSyntax:
    return CallSyntax(f"<{tag}>", f'<{tag}>\n{{{{"name": {{name}}, "arguments": ', f"}}\n</{tag}>")


def _hermes(name: str, tag: str = "tool_call") -> ToolFormat:
    """Return the format of one object between tags, on a line of its own."""
    return _tagged(name, _JSON, tag, syntax=_hermes_syntax(tag))


def _dsml(name: str, section: str, space: str = "") -> ToolFormat:
    """Return the format of DeepSeek's own tags. space: what stands behind their mark"""
    mark = f"｜DSML｜{space}"
    body = XmlCalls(
        before_name=f'<{mark}invoke name="',
        after_name=('">',),
        before_key=f'<{mark}parameter name="',
        after_key='">',
        after_value=f"</{mark}parameter>",
        after_call=(f"</{mark}invoke>",),
        typed_keys=(('" string="true">', ONLY_STRING), ('" string="false">', ANY_TYPE)),
        undeclared=ANY_TYPE,
    )
    return _tagged(name, body, f"{mark}{section}")


def _sectioned(name: str, body: CallBody, prefix: str = "") -> ToolFormat:
    """Return the format of calls between tags of each, in a section between tags of its own."""
    section, call = f"{prefix}tool_calls", f"{prefix}tool_call"
    return ToolFormat(name, body, opening=(f"<{section}>", f"<{call}>"), closing=(f"</{call}>", f"</{section}>"))


def _cohere(name: str) -> ToolFormat:
    body = JsonCalls(names=("tool_name",), arguments=("parameters",))
    return ToolFormat(name, body, opening=("<|START_ACTION|>",), closing=("<|END_ACTION|>",))


def _llama(name: str) -> ToolFormat:
    return ToolFormat(name, _JSON, opening=("<|python_tag|>",), bare=("{",), separators=";,", syntax=_LLAMA_SYNTAX)


_FORMATS = (
    # ---- JSON objects with a name and arguments
    # Hermes, Qwen 2.5 and 3, and everything trained like them
    _hermes("hermes"),
    _hermes("qwen3_json"),
    _hermes("granite4"),
    _hermes("ernie45"),
    # Llama 3.1 and later: a bare object, several with semicolons; <|python_tag|> may stand before it
    _llama("llama3_json"),
    _llama("llama4_json"),
    ToolFormat("granite", _JSON, opening=("<|tool_call|>", "<tool_call>"), bare=("[",)),
    ToolFormat("granite-20b-fc", _JSON, opening=("<function_call>",)),
    ToolFormat("phi4_mini_json", _JSON, opening=("functools", "<|tool_call|>"), closing=("<|/tool_call|>",)),
    # MiniMax-M1: an object a line; Jamba and Hunyuan-A13B: an array
    _tagged("minimax_m1", _JSON, "tool_calls"),
    _tagged("jamba", _JSON, "tool_calls"),
    _tagged("hunyuan_a13b", _JSON, "tool_calls"),
    _hermes("longcat", "longcat_tool_call"),
    ToolFormat("internlm", _JSON, opening=("<|action_start|><|plugin|>",), closing=("<|action_end|>",)),
    ToolFormat("gigachat3", _JSON, opening=("function call<|role_sep|>",)),
    ToolFormat("xlam", _JSON, opening=("[TOOL_CALLS]", "<tool_call>"), closing=("</tool_call>",), bare=("[{", "{")),
    _cohere("cohere_command3"),
    _cohere("cohere_command4"),
    ToolFormat("apertus", KeyedCalls(), opening=("<|tools_prefix|>",), closing=("<|tools_suffix|>",)),
    # Anything that writes such objects or arrays of them into its text
    ToolFormat(
        "json",
        _JSON,
        opening=("<tool_call>",),
        closing=("</tool_call>",),
        bare=("{", "["),
        separators=";,",
        syntax=_hermes_syntax(),
    ),
    # ---- a name, then JSON
    # Mistral: `[TOOL_CALLS] [{...}]` up to v7 of its tokenizer, `[TOOL_CALLS]name[ARGS]{...}` since v11
    ToolFormat(
        "mistral",
        JsonOr(_JSON, NamedCalls(after_name=("[ARGS]", "{"), before_id="[CALL_ID]")),
        opening=("[TOOL_CALLS]",),
        make_id=mistral_id,
    ),
    ToolFormat(
        "deepseek_v3",
        NamedCalls(
            before_name=("function", "<｜tool▁sep｜>"),
            after_name=("\n", "{"),
            before_arguments=("```json",),
            after_arguments=("```",),
            without_arguments=_DEEPSEEK_CLOSING,
        ),
        opening=_DEEPSEEK_OPENING,
        closing=_DEEPSEEK_CLOSING,
    ),
    ToolFormat(
        "deepseek_v31",
        NamedCalls(after_name=("<｜tool▁sep｜>",), without_arguments=_DEEPSEEK_CLOSING),
        opening=_DEEPSEEK_OPENING,
        closing=_DEEPSEEK_CLOSING,
    ),
    ToolFormat(
        "kimi_k2",
        NamedCalls(
            after_name=("<|tool_call_argument_begin|>",), without_arguments=("<|tool_call_end|>",), id_is_name=True
        ),
        opening=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        closing=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        make_id=kimi_id,
    ),
    ToolFormat(
        "plamo3",
        NamedCalls(
            before_name=("<|plamo:begin_tool_name:plamo|>",),
            after_name=("<|plamo:end_tool_name:plamo|>",),
            before_arguments=(_PLAMO_ARGUMENTS,),
            after_arguments=("<|plamo:end_tool_arguments:plamo|>",),
        ),
        opening=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>"),
        closing=("<|plamo:end_tool_request:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
    ),
    # ---- a tag for each parameter
    _tagged("qwen3_coder", _FUNCTION_TAGS, bare=("<function=",)),
    _tagged("qwen3_xml", _FUNCTION_TAGS, bare=("<function=",)),
    _tagged("step3p5", _FUNCTION_TAGS),
    _tagged("mimo", _FUNCTION_TAGS),
    _tagged("seed_oss", _FUNCTION_TAGS, "seed:tool_call"),
    _tagged("glm45", _ARGUMENT_PAIRS),
    _tagged("glm47", _ARGUMENT_PAIRS),
    _tagged("ling3", _ARGUMENT_PAIRS),
    _tagged("poolside_v1", _ARGUMENT_PAIRS),
    # Hunyuan 3 and 4, with markers that have no suffix of their checkpoint's
    _sectioned("hy_v3", _NAMED_PAIRS),
    _sectioned("hy_v4", _ARGUMENT_PAIRS),
    _sectioned("k2_horizon", JsonOr(_JSON, _IFM_PAIRS), "ifm|"),
    ToolFormat("minicpm5", _PARAM_TAGS, bare=(_PARAM_TAGS.before_name,)),
    ToolFormat("kimi_k3", _XTML_TAGS, opening=("<|open|>tools<|sep|>",), closing=("<|close|>tools<|sep|>",)),
    ToolFormat(
        "minimax_m3",
        NestedTags(_MINIMAX_MARK),
        opening=(f"{_MINIMAX_MARK}<tool_call>",),
        closing=(f"{_MINIMAX_MARK}</tool_call>",),
    ),
    _tagged("dots", JsonOr(_JSON, _INVOKE_TAGS), "dots_function_call"),
    _tagged("minimax_m2", _INVOKE_TAGS, "minimax:tool_call"),
    _dsml("deepseek_v32", "function_calls"),
    _dsml("deepseek_v4", "tool_calls"),
    _dsml("deepseek_v41", "calls", space=" "),
    ToolFormat(
        "step3",
        _STEP_TAGS,
        opening=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
        closing=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
    ),
    # ---- Python's syntax
    ToolFormat("pythonic", PythonCalls(), bare=("[",)),
    ToolFormat(
        "llama4_pythonic", PythonCalls(), opening=("<|python_start|>",), closing=("<|python_end|>",), bare=("[",)
    ),
    # Olmo 3: a call a line
    _tagged("olmo3", PythonCalls(), "function_calls"),
    ToolFormat("lfm2", PythonCalls(), opening=("<|tool_call_start|>",), closing=("<|tool_call_end|>",)),
    # ---- others
    ToolFormat(
        "functiongemma", BraceCalls("<escape>"), opening=("<start_function_call>",), closing=("<end_function_call>",)
    ),
    ToolFormat("gemma4", BraceCalls('<|"|>'), opening=("<|tool_call>",), closing=("<tool_call|>",)),
    # gpt-oss: channels instead of markers
    ToolFormat("openai", _JSON, is_harmony=True),
)
TOOL_FORMATS: dict[str, ToolFormat] = {one.name: one for one in _FORMATS}
