"""The small endpoints: models, tokenisation, health, load, metrics, sleep, the API's description."""

from __future__ import annotations

import re

import jinja2
import pytest

from octavo.errors import EngineDeadError
from tests.server.conftest import Engine, Server

NASTY = ["abc", " leading", "naïve 日本 🙂", "<|im_start|>user\nHi<|im_end|>", "a\n\n\tb ", "\u0000\u200b", "'\"\\"]


def test_a_model_is_served_under_all_its_names(tiny_engine: Engine):
    server = tiny_engine.serve(("first", "second/with-slash"))
    cards = server.get("/v1/models").json["data"]
    assert [card["id"] for card in cards] == ["first", "second/with-slash"]
    assert cards[0]["max_model_len"] == 512 and cards[0]["object"] == "model"
    assert server.get("/v1/models/second/with-slash").json["id"] == "second/with-slash"
    for name in ("first", "second/with-slash"):
        assert server.complete(model=name, prompt="a", max_tokens=1).json["model"] == name
    assert server.complete(prompt="a", max_tokens=1).json["model"] == "first"


@pytest.mark.parametrize("text", NASTY)
def test_text_survives_tokenisation_and_back(tiny: Server, real: Server, text: str):
    for server in (tiny, real):
        answer = server.post("/tokenize", prompt=text, add_special_tokens=False).json
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == server.state.max_model_len
        assert server.post("/detokenize", tokens=answer["tokens"]).json == {"prompt": text}


def test_token_strings_are_told_when_asked_for(tiny: Server):
    answer = tiny.post("/tokenize", prompt="def", return_token_strs=True).json
    assert len(answer["token_strs"]) == answer["count"] and "".join(answer["token_strs"]) == "def"
    assert "token_strs" not in tiny.post("/tokenize", prompt="def").json


def test_tokenisation_takes_a_text_or_a_conversation(tiny: Server):
    assert tiny.post("/tokenize").status == tiny.post("/tokenize", prompt="a", messages=[]).status == 400
    assert tiny.post("/tokenize", prompt="").json == {"count": 0, "max_model_len": 512, "tokens": []}


@pytest.mark.parametrize("tokens", [[320], [-1], [2**70], ["a"], [1.5], "a", None])
def test_ids_that_do_not_exist_are_refused(tiny: Server, tokens):
    reply = tiny.post("/detokenize", tokens=tokens)
    assert (reply.status, reply.error["param"]) == (400, "tokens")


def test_health_version_load(tiny: Server):
    import octavo

    assert tiny.get("/health").status == tiny.get("/ping").status == tiny.post("/ping").status == 200
    assert tiny.get("/version").json == {"version": octavo.__version__}
    assert tiny.get("/load").json == {"server_load": 0}


def test_without_an_engine_health_and_requests_say_503(
    tiny_engine: Engine, tiny: Server, monkeypatch: pytest.MonkeyPatch
):
    async def dead() -> None:
        raise EngineDeadError("it is gone")

    monkeypatch.setattr(tiny_engine.llm, "check_health", dead)
    reply = tiny.get("/health")
    assert reply.status == 503 and "it is gone" in reply.error["message"] and reply.headers["retry-after"]


def test_an_unexpected_failure_is_a_500_that_tells_nothing(tiny_engine: Engine, tiny: Server, monkeypatch):
    async def broken() -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(tiny_engine.llm, "check_health", broken)
    reply = tiny.get("/health")
    assert reply.status == 500 and "secret" not in reply.body.decode() and reply.error["type"] == "InternalServerError"


def test_a_sleeping_engine_wakes_up_and_answers_as_before(tiny: Server):
    fields = dict(prompt="abc", max_tokens=8, temperature=0)
    before = tiny.complete(**fields).json["choices"]
    assert tiny.get("/is_sleeping").json == {"is_sleeping": False}
    assert tiny.post("/sleep?level=1").status == 200
    assert tiny.get("/is_sleeping").json == {"is_sleeping": True}
    assert tiny.post("/wake_up").status == 200
    assert tiny.get("/is_sleeping").json == {"is_sleeping": False}
    assert tiny.complete(**fields).json["choices"] == before
    assert tiny.post("/sleep?level=0").status == 200
    assert tiny.get("/is_sleeping").json == {"is_sleeping": True}
    assert tiny.post("/wake_up").status == 200
    assert tiny.get("/is_sleeping").json == {"is_sleeping": False}
    assert tiny.complete(prompt="import", max_tokens=4, temperature=0).status == 200
    assert tiny.post("/sleep?level=7").error["param"] == "level"
    assert tiny.post("/sleep?mode=never").error["param"] == "mode"


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_that_counts_tokens(tiny_engine: Engine):
    server = tiny_engine.serve(metrics_prefix="vllm")

    def value(name: str) -> float:
        text = server.get("/metrics").body.decode()
        (line,) = re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.M)
        return float(line)

    before = value("vllm:generation_tokens_total"), value("vllm:prompt_tokens_total")
    server.complete(prompt=[70] * 9, max_tokens=5, ignore_eos=True)
    assert value("vllm:generation_tokens_total") == before[0] + 5
    assert value("vllm:prompt_tokens_total") == before[1] + 9


def test_every_metric_is_described_once_and_well_formed(tiny: Server):
    reply = tiny.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    described: list[str] = []
    kind = ""
    for line in reply.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            described.append(name)
        elif not line.startswith("#"):
            assert re.fullmatch(r'[a-z_:0-9]+(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? \S+', line), line
            base = re.sub(r"_(bucket|count|sum)$", "", line.partition("{")[0]) if kind == "histogram" else None
            assert (base or line.partition("{")[0]) == described[-1]
            assert kind != "counter" or line.partition("{")[0].endswith("_total")
    assert len(described) == len(set(described))
    assert {"octavo:num_requests_running", "octavo:time_to_first_token_seconds", "http_requests_total"} <= set(
        described
    )


# -- description -------------------------------------------------------------------------------------------------------


def test_the_list_of_models_is_found_with_a_slash_behind_it(tiny: Server):
    assert tiny.get("/v1/models/").json == tiny.get("/v1/models").json


def test_the_description_names_every_endpoint_and_field(tiny: Server):
    document = tiny.get("/openapi.json").json
    assert set(document["paths"]) >= {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics"}
    fields = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "temperature", "chat_template_kwargs"} <= set(fields)


def test_the_docs_page_needs_nothing_from_elsewhere(tiny: Server, tiny_engine: Engine):
    page = tiny.get("/docs").body.decode()
    assert "/v1/chat/completions" in page and "max_completion_tokens" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    without = tiny_engine.serve(disable_docs=True)
    assert without.get("/docs").status == without.get("/openapi.json").status == 404


def test_clients_can_tokenise_by_way_of_the_server(real, real_engine):
    """As lm-eval's remote tokenizer does."""
    info = real.get("/tokenizer_info").json
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_end|>" in info["additional_special_tokens"]
    assert info["model_max_length"] == 1024
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    template = jinja2.Environment().from_string(info["chat_template"])
    text = template.render(messages=messages, add_generation_prompt=True)
    ids = real.post("/tokenize", prompt=text, add_special_tokens=False).json["tokens"]
    assert ids == real.post("/tokenize", messages=messages, add_generation_prompt=True).json["tokens"]
    own = "{{ messages[0].content }}"
    assert real_engine.serve(chat_template=own).get("/tokenizer_info").json["chat_template"] == own
