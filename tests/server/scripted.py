"""A model that says what the request tells it to: for what is about reading answers, not about making them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.sampling.custom_processors import AdapterLogitsProcessor, RequestCallable
from octavo.types.sampling_params import SamplingParams
from tests.server.conftest import Reply, Server

END = 0  # the tiny model's end of sequence

# Like Qwen3's: tools and calls as Hermes has them, and reasoning that a request can switch off.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Call with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


class Scripted(AdapterLogitsProcessor):
    """Forces extra_args["script"], a list of ids, and then the end, as far as a grammar lets it."""

    def new_req_logits_processor(self, params: SamplingParams) -> RequestCallable | None:
        script: Sequence[int] | None = (params.extra_args or {}).get("script")
        if script is None:
            return None

        def force(output_ids: Sequence[int], logits: Any) -> Any:
            place = len(output_ids)
            token_id = script[place] if place < len(script) else END
            if np.isfinite(logits[token_id]):
                logits.fill(-np.inf)
                logits[token_id] = 0
            return logits

        return force


def script(server: Server, text: str) -> dict[str, Any]:
    """Return the request fields that make the model say a text."""
    tokenizer = server.state.require_tokenizer()
    return {"vllm_xargs": {"script": tokenizer.encode(text, add_special_tokens=False)}}


def say(server: Server, text: str, **fields: Any) -> Reply:
    """Ask for a chat completion whose answer is the text."""
    fields.setdefault("messages", [{"role": "user", "content": "Hi"}])
    return server.post("/v1/chat/completions", **script(server, text), **fields)


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def added_up(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Return the message that a stream's deltas of one choice add up to, checked for OpenAI's shape."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            assert set(delta) <= {"role", "content", "reasoning", "tool_calls"}
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                _add_call(message["tool_calls"], call)
            message["finish_reason"] = choice["finish_reason"]
    return message


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        assert (
            delta["type"] == "function" and delta["id"] and delta["function"] == {**delta["function"], "arguments": ""}
        )
        calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
    else:
        assert delta["index"] == len(calls) - 1 and set(delta) == {"index", "function"}
        assert set(delta["function"]) == {"arguments"}
        calls[-1]["arguments"] += delta["function"]["arguments"]
