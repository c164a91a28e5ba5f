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
    closing: any of these ends it, the usual one first
    is_implied: an output begins inside the reasoning although no marker says so, unless the prompt closed it
    ends_at_call: the marker of a tool call ends it too: these models do not always close it before a call
    content_markers: wrap the content and are no part of it
    is_harmony: gpt-oss's channels instead of markers
    """

    name: str
    opening: tuple[str, ...] = ("<think>",)
    closing: tuple[str, ...] = ("</think>",)
    is_implied: bool = False
    ends_at_call: bool = False
    content_markers: tuple[str, ...] = ()
    is_harmony: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opening, *self.closing, *self.content_markers)


_HARMONY_REASONING = "<|channel|>analysis<|message|>"
_HARMONY_FINAL = "<|channel|>final<|message|>"
_TALK = ("Here's", "Here is")

_FORMATS = (
    # DeepSeek R1, and models trained after it: older templates neither open it in the prompt nor do they write <think>
    ReasoningFormat("deepseek_r1", is_implied=True),
    # V3.1 and later: the template opens or closes it at the end of the prompt
    ReasoningFormat("deepseek_v3"),
    ReasoningFormat("deepseek_v4"),
    # Qwen3: the older template leaves <think> to the model, the newer one opens it; enable_thinking=False closes it
    ReasoningFormat("qwen3", ends_at_call=True),
    ReasoningFormat("nemotron_v3", ends_at_call=True),
    ReasoningFormat("holo2"),
    ReasoningFormat("glm45", ends_at_call=True),
    ReasoningFormat("glm47", ends_at_call=True),
    ReasoningFormat("ling3", ends_at_call=True),
    ReasoningFormat("mimo"),
    ReasoningFormat("kimi_k2", is_implied=True, ends_at_call=True),
    ReasoningFormat("minimax_m2", is_implied=True),
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
    # Granite 3.2 writes sentences for markers
    ReasoningFormat(
        "granite",
        opening=tuple(f"{start} my thought process:" for start in _TALK),
        closing=tuple(f"{start} my response:" for start in _TALK),
    ),
    ReasoningFormat("gemma4", opening=("<|channel>thought\n",), closing=("<channel|>",), ends_at_call=True),
    ReasoningFormat(
        "cohere_command3",
        opening=("<|START_THINKING|>",),
        closing=("<|END_THINKING|>",),
        content_markers=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
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
