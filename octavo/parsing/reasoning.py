"""How families of models mark their reasoning, and where an output stands when it begins.

The formats are those of the models' chat templates and of the parsers that vLLM 0.32 names alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers around the reasoning, which comes first in an output.

    opening: one of these begins it, unless the prompt did already
    closing: any of these ends it, the usual one first; as many as there are openings: each has its own
    is_implied: an output begins inside the reasoning although no marker says so, unless the prompt closed it
    ends_at_call: the marker of a tool call ends it too: these models do not always close it before a call
    content_markers: wrap the content and are no part of it
    drops_space: white space between the reasoning and the content is layout and dropped
    stays_in_content: the reasoning and the markers around it are content; a missing opening one is added
    is_harmony: gpt-oss's channels instead of markers
    """

    name: str
    opening: tuple[str, ...] = ("<think>",)
    closing: tuple[str, ...] = ("</think>",)
    is_implied: bool = False
    ends_at_call: bool = False
    content_markers: tuple[str, ...] = ()
    drops_space: bool = False
    stays_in_content: bool = False
    is_harmony: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opening, *self.closing, *self.content_markers)

    def closing_behind(self, prompt_end: str) -> str:
        """Return the marker that ends the reasoning which a prompt may have opened."""
        pairs = zip(self.opening, self.closing, strict=True) if len(self.opening) == len(self.closing) else ()
        return next((end for start, end in pairs if prompt_end.endswith(start.rstrip())), self.closing[0])


_HARMONY_REASONING = "<|channel|>analysis<|message|>"
_HARMONY_FINAL = "<|channel|>final<|message|>"
_TALK = ("Here's", "Here is")
_EFFORTS = ("think", "think_fast", "think_faster")


def _cohere(name: str, *content: str) -> ReasoningFormat:
    """Return the format whose content stands between markers of these names."""
    around = tuple(f"<|{side}_{one}|>" for one in content for side in ("START", "END"))
    return ReasoningFormat(name, ("<|START_THINKING|>",), ("<|END_THINKING|>",), content_markers=around)


_FORMATS = (
    # DeepSeek R1, and models trained after it: older templates neither open it in the prompt nor do they write <think>
    ReasoningFormat("deepseek_r1", is_implied=True),
    # V3.1 and later: the template opens or closes it at the end of the prompt
    ReasoningFormat("deepseek_v3"),
    ReasoningFormat("deepseek_v4"),
    ReasoningFormat("deepseek_v41"),
    ReasoningFormat("poolside_v1"),
    ReasoningFormat("hy_v3"),
    ReasoningFormat("hy_v4"),
    # Qwen3: the older template leaves <think> to the model, the newer one opens it; enable_thinking=False closes it
    ReasoningFormat("qwen3", ends_at_call=True),
    ReasoningFormat("nemotron_v3", ends_at_call=True),
    ReasoningFormat("granite_thinking_parser", ends_at_call=True, drops_space=True),
    ReasoningFormat("holo2"),
    ReasoningFormat("glm45", ends_at_call=True),
    ReasoningFormat("glm47", ends_at_call=True),
    ReasoningFormat("ling3", ends_at_call=True),
    ReasoningFormat("mimo"),
    ReasoningFormat("kimi_k2", is_implied=True, ends_at_call=True),
    ReasoningFormat("minimax_m2", is_implied=True),
    ReasoningFormat("minimax_m2_append_think", is_implied=True, stays_in_content=True),
    ReasoningFormat("minimax_m3", opening=("<mm:think>",), closing=("</mm:think>",)),
    ReasoningFormat("step3", is_implied=True),
    ReasoningFormat("step3p5", is_implied=True, ends_at_call=True),
    ReasoningFormat("olmo3", is_implied=True),
    ReasoningFormat("ernie45", is_implied=True, content_markers=("<response>\n", "\n</response>\n")),
    ReasoningFormat(
        "hunyuan_a13b",
        opening=("<think>\n", "<think>"),
        closing=("\n</think>\n<answer>\n", "</think>"),
        content_markers=("<answer>\n", "\n</answer>"),
    ),
    ReasoningFormat("seed_oss", opening=("<seed:think>",), closing=("</seed:think>",)),
    ReasoningFormat("mistral", opening=("[THINK]",), closing=("[/THINK]",)),
    ReasoningFormat(
        "plamo3",
        opening=("<|plamo:begin_think:plamo|>",),
        closing=("<|plamo:end_think:plamo|>",),
        is_implied=True,
        ends_at_call=True,
    ),
    # a marker for each effort
    ReasoningFormat(
        "k2_horizon",
        opening=tuple(f"<ifm|{name}>" for name in _EFFORTS),
        closing=tuple(f"</ifm|{name}>" for name in _EFFORTS),
        ends_at_call=True,
    ),
    ReasoningFormat(
        "kimi_k3",
        opening=("<|open|>think<|sep|>",),
        closing=("<|close|>think<|sep|>",),
        content_markers=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    # Granite 3.2 writes sentences for markers
    ReasoningFormat(
        "granite",
        opening=tuple(f"{start} my thought process:" for start in _TALK),
        closing=tuple(f"{start} my response:" for start in _TALK),
    ),
    ReasoningFormat("gemma4", opening=("<|channel>thought\n",), closing=("<channel|>",), ends_at_call=True),
    _cohere("cohere_command3", "RESPONSE"),
    _cohere("cohere_command4", "RESPONSE", "TEXT"),
    ReasoningFormat("openai_gptoss", opening=(_HARMONY_REASONING,), closing=(_HARMONY_FINAL,), is_harmony=True),
)
REASONING_SWITCHES = ("enable_thinking", "thinking")  # what templates call them
REASONING_FORMATS: dict[str, ReasoningFormat] = {one.name: one for one in _FORMATS}


def thinking_is_disabled(template_arguments: Mapping[str, Any]) -> bool:
    """Tell whether a request's chat_template_kwargs turn reasoning off, by the names that templates use for it."""
    return any(template_arguments.get(name) is False for name in REASONING_SWITCHES)


def starts_in_reasoning(
    reasoning: ReasoningFormat,
    prompt_text: str,
    template_arguments: Mapping[str, Any] | None = None,
    continued_text: str = "",
) -> bool:
    """Tell whether an output that continues this prompt begins inside the reasoning.

    What the prompt ends with decides; where it ends with neither marker, what the request asked of the template, and
    then what is usual for the format.

    prompt_text: the rendered prompt, or its last lines, special tokens shown
    continued_text: of the final assistant message that the output continues: the last marker in it decides first
    """
    last_opening = max((continued_text.rfind(marker) for marker in reasoning.opening), default=-1)
    last_closing = max((continued_text.rfind(marker) for marker in reasoning.closing), default=-1)
    if last_opening != last_closing:
        return last_opening > last_closing
    end = prompt_text.rstrip()
    if any(end.endswith(marker.rstrip()) for marker in reasoning.opening):
        return True
    if any(end.endswith(marker.rstrip()) for marker in reasoning.closing):
        return False
    return reasoning.is_implied and not thinking_is_disabled(template_arguments or {})
