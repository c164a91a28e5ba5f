"""A model's reasoning in token ids, for a prompt: what a thinking budget, and grammars that wait for its end, need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.config import OctavoConfig
from octavo.parsing.reasoning import ReasoningFormat, starts_in_reasoning, thinking_is_disabled
from octavo.parsing.registry import AUTO, resolve_reasoning_parser
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.reasoning import ReasoningMarkers

_PROMPT_END_TOKENS = 32  # a template opens or closes reasoning in the last few tokens of a prompt
# gpt-oss reasons in messages of their own, which end before another one begins
_HARMONY_START, _HARMONY_END = "<|channel|>analysis<|message|>", "<|end|>"


def reasoning_markers(
    reasoning: ReasoningFormat,
    tokenizer: Tokenizer,
    prompt_text: str,
    template_arguments: Mapping[str, Any] | None = None,
    call_markers: Sequence[str] = (),
    continued_text: str = "",
) -> ReasoningMarkers:
    """Return the markers for an output that continues a prompt.

    prompt_text: or its last lines, special tokens shown; template_arguments: the request's chat_template_kwargs
    call_markers: of the format in which the answer may call; continued_text: see starts_in_reasoning
    """
    end = prompt_text.rstrip()
    # where this is several ids, a model may write the marker in others as well: then only its text can tell
    end_ids = _encode(tokenizer, reasoning.closing_behind(end))
    if reasoning.is_harmony:
        around = _encode(tokenizer, _HARMONY_START), _encode(tokenizer, _HARMONY_END)
        return ReasoningMarkers(*around, may_begin=True, answer_token_ids=end_ids)
    begins_inside = starts_in_reasoning(reasoning, prompt_text, template_arguments, continued_text)
    is_closed = any(end.endswith(marker.rstrip()) for marker in reasoning.closing)
    start_ids = _encode(tokenizer, reasoning.opening[0]) if reasoning.opening else []
    is_off = is_closed or thinking_is_disabled(template_arguments or {})
    return ReasoningMarkers(
        start_ids,
        end_ids,
        begins_inside,
        may_begin=bool(start_ids) and not begins_inside and not is_off,
        answer_token_ids=end_ids,
        further_ends=[_encode(tokenizer, marker) for marker in call_markers] if reasoning.ends_at_call else [],
    )


def default_reasoning(config: OctavoConfig, tokenizer: Tokenizer | None) -> ReasoningFormat | None:
    """Return how an engine's model marks its reasoning: as the option or else its template says; None if it pools.

    Raises ConfigError or UnsupportedError for a format that nobody knows.
    """
    if config.model.pooling is not None:
        return None
    template = tokenizer.chat_templates.get("default") if tokenizer is not None else None
    return resolve_reasoning_parser(config.structured_outputs.reasoning_parser or AUTO, template)


def prompt_end(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """Return the text of a prompt's last tokens, special ones shown."""
    return tokenizer.decode(token_ids[-_PROMPT_END_TOKENS:], skip_special_tokens=False)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
