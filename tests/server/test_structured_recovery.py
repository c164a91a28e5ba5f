"""The engine is killed while requests think and others write JSON behind their thoughts: no answer changes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.loader.catalog import pull
from tests.server.conftest import Engine, Server
from tests.server.scripted import added_up

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "uniqueItems": True, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: <think>\n"
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
NUM_REQUESTS = 8

pytestmark = pytest.mark.native_ops


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    path = pull("smollm2-135m-instruct", lambda progress: None)
    engine = Engine(
        model=str(path), reasoning_parser="qwen3", max_model_len=512, num_gpu_blocks_override=256, max_num_seqs=6
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def server(engine: Engine) -> Server:
    return engine.serve(chat_template=TEMPLATE)


def fields_of(number: int) -> dict[str, Any]:
    """Return a request: three of four think for a while, and then follow the schema; one just writes."""
    common = {"seed": number, "temperature": 1.0, "max_tokens": 90, "stream": True}
    if number % 4 == 3:
        return common
    return {
        **common,
        "response_format": FORMAT,
        "thinking_token_budget": 12 + 6 * (number % 3),
    }


def answer_of(server: Server, number: int) -> dict[str, Any]:
    return added_up(server.chat(f"Describe thing number {number}.", **fields_of(number)).events)


def killing_answer_of(engine: Engine, server: Server, number: int) -> tuple[dict[str, Any], int]:
    """Return an answer, and how often the engine's process was killed on the way: in the thoughts, and behind them."""
    fields = fields_of(number)
    extra = {"thinking_token_budget": fields.pop("thinking_token_budget")}
    events, num_killed = [], 0
    messages = [{"role": "user", "content": f"Describe thing number {number}."}]
    with server.client().chat.completions.create(
        model=server.model, messages=messages, extra_body=extra, **fields
    ) as stream:
        for chunk in stream:
            events.append(chunk.model_dump(exclude_unset=True))
            delta = chunk.choices[0].delta
            content = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
            is_thinking = bool(getattr(delta, "reasoning", None)) and len(events) > 4
            if (num_killed == 0 and is_thinking) or (num_killed == 1 and len(content) > 3):
                os.kill(engine.llm.engine_core.process_id, signal.SIGKILL)
                num_killed += 1
    return added_up(events), num_killed


def test_answers_behind_thoughts_are_the_same_after_kills_under_load(engine: Engine, server: Server):
    with ThreadPoolExecutor(NUM_REQUESTS) as threads:
        undisturbed = list(threads.map(lambda number: answer_of(server, number), range(NUM_REQUESTS)))
        process_id = engine.llm.engine_core.process_id
        others = [threads.submit(answer_of, server, number) for number in range(1, NUM_REQUESTS)]
        first, num_killed = killing_answer_of(engine, server, 0)
        again = [first, *(other.result() for other in others)]
    assert num_killed == 2 and engine.llm.engine_core.process_id != process_id
    for before, after in zip(undisturbed, again, strict=True):
        assert (before["reasoning"], before["content"]) == (after["reasoning"], after["content"])
        assert before["finish_reason"] == after["finish_reason"]
    constrained = [answer for number, answer in enumerate(again) if number % 4 != 3]
    assert all(answer["reasoning"] for answer in constrained)
    for answer in constrained:
        if answer["finish_reason"] == "stop":
            assert set(json.loads(answer["content"])) == {"name", "tags"}
