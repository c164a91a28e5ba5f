"""What no well-behaved client sends: every refusal is a 4xx in OpenAI's shape, at once, and the server goes on."""

from __future__ import annotations

import gzip
import logging
import socket
import time
from typing import Any

import pytest

from octavo.entrypoints.openai.body import load_json
from octavo.errors import InvalidRequestError
from tests.server.conftest import JSON_TYPE, Engine, Server

GOOD = {"prompt": "abc", "max_tokens": 2}
POSTS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


def raw(server: Server, path: str, body: bytes, headers: dict[str, str] | None = None):
    return server.request("POST", path, body, JSON_TYPE if headers is None else headers)


# -- content types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_taken_under_every_spelling_of_its_type(tiny: Server, content_type: str):
    body = b'{"prompt": "abc", "max_tokens": 2}'
    assert raw(tiny, "/v1/completions", body, {"Content-Type": content_type}).status == 200
    marked = b"\xef\xbb\xbf" + body  # readers may skip a byte order mark (RFC 8259, 8.1), and Python's do
    assert raw(tiny, "/v1/completions", marked, {"Content-Type": content_type}).status == 200


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_other_content_types_are_refused(tiny: Server, content_type: str | None):
    headers = {} if content_type is None else {"Content-Type": content_type}
    for path in POSTS:
        reply = raw(tiny, path, b'{"prompt": "abc"}', headers)
        assert reply.status == 415 and "application/json" in reply.error["message"]


def test_compressed_bodies_are_refused_as_such(tiny: Server):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    reply = raw(tiny, "/v1/completions", gzip.compress(b'{"prompt": "abc"}'), headers)
    assert reply.status == 415 and "Content-Encoding" in reply.error["message"]


# -- bodies ------------------------------------------------------------------------------------------------------------

BAD_BODIES = {
    "array": b"[]",
    "null": b"null",
    "number": b"123",
    "string": b'"s"',
    "open": b"{",
    "empty": b"",
    "not utf-8": b'{"prompt": "\xff\xfe"}',
    "utf-16": '{"prompt": "abc"}'.encode("utf-16"),
    "NaN": b'{"prompt": "abc", "temperature": NaN}',
    "infinity": b'{"prompt": "abc", "top_p": -Infinity}',
    "too large for a float": b'{"prompt": "abc", "temperature": 1e999}',
    "duplicate": b'{"prompt": "abc", "prompt": "abcd"}',
    "duplicate below": b'{"prompt": "abc", "logit_bias": {"5": 1, "5": 2}}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "deep": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "endless number": b'{"prompt": "abc", "seed": ' + b"9" * 10_000 + b"}",
    "trailing": b'{"prompt": "abc"} x',
    "single quotes": b"{'prompt': 'abc'}",
    "control character": b'{"prompt": "a\nb"}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bodies_that_are_no_json_object_are_refused(tiny: Server, name: str):
    for path in POSTS:
        reply = raw(tiny, path, BAD_BODIES[name])
        assert reply.status == 400 and reply.error["type"] == "BadRequestError"
    assert tiny.complete(**GOOD).status == 200


BAD_FIELDS = [
    ("prompt", [], "prompt"),
    ("prompt", "", "prompt"),
    ("prompt", None, "prompt"),
    ("prompt", 5, "prompt"),
    ("prompt", {}, "prompt"),
    ("prompt", [320], "prompt"),
    ("prompt", [-1], "prompt"),
    ("prompt", [2**63], "prompt"),
    ("prompt", [1.5], "prompt"),
    ("prompt", [True], "prompt"),
    ("prompt", [[1], "a"], "prompt"),
    ("prompt", [[1], []], "prompt"),
    ("prompt", ["a", ""], "prompt"),
    ("prompt", [[[1]]], "prompt"),
    ("prompt", [1, "a"], "prompt"),
    ("prompt", [None], "prompt"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("min_p", -0.1, "min_p"),
    ("min_p", 1.1, "min_p"),
    ("top_k", -2, "top_k"),
    ("top_k", 1.5, "top_k"),
    ("n", 0, "n"),
    ("n", -1, "n"),
    ("n", True, "n"),
    ("n", 10**9, "n"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_tokens", 2**70, "max_tokens"),
    ("min_tokens", -1, "min_tokens"),
    ("seed", 2**70, "seed"),
    ("seed", "x", "seed"),
    ("stop", [""], "stop"),
    ("stop", [1], "stop"),
    ("stop", "", "stop"),
    ("stop_token_ids", [320], "stop_token_ids"),
    ("stop_token_ids", [-1], "stop_token_ids"),
    ("allowed_token_ids", [], "allowed_token_ids"),
    ("allowed_token_ids", [320], "allowed_token_ids"),
    ("bad_words", [""], "bad_words"),
    ("logprobs", 10**6, "logprobs"),
    ("logprobs", -2, "logprobs"),
    ("logprobs", "1", "logprobs"),
    ("prompt_logprobs", 21, "prompt_logprobs"),
    ("presence_penalty", 2.5, "presence_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("truncate_prompt_tokens", 0, "truncate_prompt_tokens"),
    ("truncation_side", "up", "truncation_side"),
    ("cache_salt", "", "cache_salt"),
    ("cache_salt", "x" * 2000, "cache_salt"),
    ("priority", 3, "priority"),
    ("stream", "yes", "stream"),
    ("stream_options", [], "stream_options"),
    ("repetition_detection", {"max_pattern_size": 3, "min_count": 1}, None),
    ("vllm_xargs", {"x": 2**70}, None),
    ("request_id", "x" * 1000, "request_id"),
    ("echo", "yes", "echo"),
    ("model", 5, "model"),
]


@pytest.mark.parametrize(("field", "value", "param"), BAD_FIELDS)
def test_values_out_of_range_are_refused_by_name(tiny: Server, field: str, value, param: str | None):
    for stream in (False, True):
        reply = tiny.complete(**{**GOOD, "stream": stream, field: value})
        assert reply.status == 400, reply.body
        assert param is None or reply.error["param"] == param
    assert tiny.complete(**GOOD).status == 200


def test_whole_numbers_may_be_written_as_floats(tiny: Server):
    """JSON has one kind of number, and clients in some languages write every one with a point."""
    asked = {"prompt": "abc", "max_tokens": 3.0, "top_k": 1.0, "seed": 7.0, "logprobs": 2.0}
    whole = {name: int(value) if isinstance(value, float) else value for name, value in asked.items()}
    assert tiny.complete(**asked).json["choices"] == tiny.complete(**whole).json["choices"]
    assert tiny.chat(max_tokens=2.0, n=2.0).json["usage"]["completion_tokens"] == 4
    assert tiny.complete(prompt="abc", max_tokens=1e300).error["param"] == "max_tokens"


def test_errors_name_the_field_that_the_client_sent(tiny: Server):
    assert tiny.chat(max_completion_tokens=0).error["param"] == "max_completion_tokens"
    long = tiny.chat("x" * 2000)
    # the words by which clients know that a conversation has become too long
    assert long.error["param"] == "messages" and "maximum context length is 512 tokens" in long.error["message"]
    assert tiny.complete(prompt=[320]).error["param"] == "prompt"
    assert tiny.chat(logprobs=True, top_logprobs=21).error["message"].startswith("top_logprobs must be at most 20")
    assert tiny.complete(prompt="abc", echo=True, logprobs=21).error["param"] == "logprobs"
    assert tiny.post("/v1/responses", input="Hi", max_output_tokens=0).error["param"] == "max_output_tokens"


UNBUILT_FIELDS = [
    ("guided_json", {"type": "object"}),
    ("guided_regex", "a+"),
    ("guided_choice", ["a", "b"]),
    ("prompt_embeds", "AAAA"),
    ("suffix", "end"),
    ("logits_processors", ["mine.Processor"]),
    ("kv_transfer_params", {"do_remote_decode": True}),
    ("thinking_token_budget", 5),  # of a model that is not known to reason
]


@pytest.mark.parametrize(("field", "value"), UNBUILT_FIELDS)
def test_fields_of_unbuilt_capabilities_are_refused_never_ignored(tiny: Server, field: str, value):
    reply = tiny.complete(**{**GOOD, field: value})
    assert reply.status == 400 and field in reply.error["message"] and reply.error["param"] == field
    assert tiny.complete(**{**GOOD, field: None}).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("functions", [{}]), ("modalities", ["audio"]), ("audio", {}), ("prediction", {"a": 1}), ("store", True)],
)
def test_unbuilt_fields_of_chats_are_refused(tiny: Server, field: str, value):
    reply = tiny.chat("Hi", max_tokens=1, **{field: value})
    assert reply.status == 400 and field in reply.error["message"]


def test_neutral_values_of_unbuilt_fields_are_accepted(tiny: Server):
    neutral = dict(response_format={"type": "text"}, suffix="", kv_transfer_params={}, guided_choice=None)
    assert tiny.complete(**GOOD, **neutral).status == 200
    assert tiny.chat("Hi", max_tokens=1, modalities=["text"], store=False, service_tier="auto", user="u").status == 200


def test_unknown_fields_are_accepted_with_one_warning(tiny: Server, caplog: pytest.LogCaptureFixture):
    logging.getLogger("octavo").addHandler(caplog.handler)
    try:
        messages = [{"role": "user", "content": "Hi", "opts": 1}]
        for _ in range(3):
            fields: dict[str, Any] = {
                "temprature": 0,
                "tools": [{"type": "function", "function": {"name": "f", "descripton": "d"}}],
            }
            fields["stream_options"] = {"include_usag": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": {}, "strct": True}}
            fields |= {"messages": messages, "max_tokens": 1, "stream": True, "tool_choice": "none"}
            assert tiny.post("/v1/chat/completions", **fields).status == 200
    finally:
        logging.getLogger("octavo").removeHandler(caplog.handler)
    for name in ("temprature", "opts", "descripton", "include_usag", "strct"):
        assert len({record.msg % record.args for record in caplog.records if name in record.getMessage()}) == 1
        assert sum(name in record.getMessage() for record in caplog.records) == 1


def test_errors_do_not_repeat_what_is_long(tiny: Server):
    long = "x" * 100_000
    for fields in (
        {"messages": [{"role": "user", "content": [{"type": long}]}]},
        {"structured_outputs": {long: 1}},
        {"structured_outputs": {"json": {"$ref": long}}},
        {"structured_outputs": {"grammar": f"root ::= {long}"}},
        {"tools": [tool(f"{'f' * 250}{i}") for i in range(30)], "tool_choice": tool("other")},
    ):
        reply = tiny.chat("Hi", **fields)
        assert reply.status == 400 and len(reply.error["message"]) < 2100


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_a_model_that_is_not_served_is_not_found(tiny: Server):
    for reply in (tiny.complete(model="gpt-5", prompt="a"), tiny.chat(model="gpt-5"), tiny.get("/v1/models/gpt-5")):
        assert reply.status == 404
        assert (reply.error["code"], reply.error["param"]) == ("model_not_found", "model")


def test_paths_and_methods_that_do_not_exist_are_told(tiny: Server):
    assert tiny.get("/nothing").error["code"] == 404
    assert tiny.get("/v1/completions").error["code"] == 405
    assert tiny.request("POST", "/v1/models", b"{}", JSON_TYPE).error["code"] == 405


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tiny_engine: Engine) -> Server:
    return tiny_engine.serve(
        max_request_bytes=10_000, max_header_bytes=4_000, max_header_count=20, request_timeout_s=0.5,
        max_prompts_per_request=4, max_sequences_per_request=6,
    )  # fmt: skip


def test_bodies_over_the_limit_are_refused_before_they_are_read(small: Server):
    assert raw(small, "/v1/completions", b" " * 10_001).status == 413
    with socket.create_connection(("127.0.0.1", small.port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 200000000\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", small.port)) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n")
        connection.sendall((b"1000\r\n" + b" " * 4096 + b"\r\n") * 3)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_heads_over_the_limit_are_refused(small: Server):
    too_many = {f"x-{number}": "1" for number in range(30)}
    assert small.request("GET", "/health", headers=too_many).status == 431
    assert small.request("GET", "/health", headers={"x-long": "x" * 5_000}).status == 431
    assert small.get("/health").status == 200


def test_an_endless_head_is_cut_off(small: Server):
    with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx-endless: ")
        with pytest.raises(OSError):
            for _ in range(10_000):
                connection.sendall(b"x" * 1000)
                time.sleep(0.0005)


def test_a_connection_on_which_nothing_comes_is_closed(small: Server):
    for beginning in (b"", b"GET /health HTTP/1.1\r\nHost:"):
        with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
            connection.sendall(beginning)
            assert connection.recv(100) == b""


def test_more_prompts_or_answers_than_allowed_are_refused(small: Server):
    assert small.complete(prompt=["a"] * 5).error["param"] == "prompt"
    assert small.complete(prompt=["a"] * 4, n=2).error["param"] == "n"
    assert small.chat("a", n=7).error["param"] == "n"
    assert small.complete(prompt=["a"] * 3, n=2, max_tokens=1).status == 200


def test_huge_lists_are_refused_quickly_and_delay_nobody(tiny: Server):
    wishes = (
        {"prompt": ["a"] * 10**6},
        {"prompt": "a", "stop": ["x"] * 10**5},
        {"prompt": "a", "logit_bias": {str(number): 1 for number in range(10**5)}},
        {"prompt": "a" * 5_000_000},
        {"prompt": [[70]] * 10**5},
    )
    for fields in wishes:
        assert tiny.complete(**fields).status == 400
    assert tiny.get("/health").status == 200


def test_more_sequences_than_run_at_once_all_finish(tiny: Server):
    answer = tiny.complete(prompt="abc", n=64, max_tokens=3, ignore_eos=True).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(64))
    assert answer["usage"]["completion_tokens"] == 192


def test_what_is_wrong_with_a_body_is_said_once():
    for body, message in ((b'{"a": 1, "a": 2}', "the request's body has 'a' twice in one object"), (b"[NaN]", "NaN")):
        with pytest.raises(InvalidRequestError, match=message) as error:
            load_json(body)
        assert str(error.value).count("the request's body") == 1
