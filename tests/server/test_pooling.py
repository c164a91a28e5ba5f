"""Embeddings, classes, scores and ranks over HTTP: shapes, encodings, refusals; OpenAI's client."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from octavo import LLM
from octavo.entrypoints.openai.batch import run_batch
from octavo.parsing import registry
from tests.server.conftest import Engine, Server
from tests.tiny_encoders import write_bert, write_cross_encoder

TEXTS = ["a b c", "d e", "a b c"]


@pytest.fixture(scope="module")
def embedding_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(model=str(write_bert(tmp_path_factory.mktemp("bert"))), served_model_name="embedder")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def embedder(embedding_engine: Engine) -> Server:
    return embedding_engine.serve()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    engine = Engine(model=str(write_cross_encoder(tmp_path_factory.mktemp("cross"))), served_model_name="reranker")
    yield engine.serve()
    engine.close()


def embeddings(server: Server, **fields: Any) -> np.ndarray:
    reply = server.post("/v1/embeddings", **fields)
    assert reply.status == 200, reply.body
    return np.array([item["embedding"] for item in reply.json["data"]], np.float32)


def test_nothing_is_said_of_parsers_for_what_generates_nothing(
    embedding_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    registry._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, "octavo"):
        LLM(embedding_engine.llm.model_config.model)
        embedding_engine.serve()
    assert "vocabulary of" in caplog.text and "parser" not in caplog.text


# -- embeddings --------------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
def test_base64_is_the_same_numbers_as_little_endian_floats(embedder: Server) -> None:
    floats = embeddings(embedder, input=TEXTS)
    reply = embedder.post("/v1/embeddings", input=TEXTS, encoding_format="base64").json
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in reply["data"]]
    assert np.array_equal(np.array(decoded), floats) and floats.shape == (3, 8)
    assert [item["index"] for item in reply["data"]] == [0, 1, 2]
    assert reply["object"] == "list" and reply["id"].startswith("embd-") and reply["model"] == "embedder"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == 5 + 4 + 5


@pytest.mark.parametrize("rank", ["1", "999999999"])
def test_a_replica_that_there_is_not_is_refused(embedder: Server, rank: str) -> None:
    headers = {"Content-Type": "application/json", "X-data-parallel-rank": rank}
    reply = embedder.request("POST", "/v1/embeddings", json.dumps({"input": "a"}), headers)
    assert reply.status == 400 and reply.error["param"] == "data_parallel_rank"
    assert embeddings(embedder, input="a").shape == (1, 8)


@pytest.mark.parametrize(
    ("dtype", "endianness", "kind"), [("float32", "big", ">f4"), ("float16", None, "<f2"), ("bfloat16", None, None)]
)
def test_other_bytes_on_request(embedder: Server, dtype: str, endianness: str | None, kind: str | None) -> None:
    fields = {"encoding_format": "base64", "embed_dtype": dtype, "endianness": endianness}
    data = embedder.post("/v1/embeddings", input="a b", **fields).json["data"][0]["embedding"]
    raw = base64.b64decode(data)
    if kind is None:
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(raw, kind)
    assert np.allclose(values, embeddings(embedder, input="a b")[0], atol=5e-3)


@pytest.mark.native_ops
def test_openai_client_reads_embeddings_by_default_and_as_floats(embedder: Server) -> None:
    client = embedder.client()
    default = client.embeddings.create(model="embedder", input=TEXTS)  # the client asks for base64 by itself
    floats = client.embeddings.create(model="embedder", input=TEXTS, encoding_format="float", user="somebody")
    assert [item.embedding for item in default.data] == [item.embedding for item in floats.data]
    assert len(default.data[0].embedding) == 8 and default.usage.total_tokens == 14


def test_texts_ids_and_lists_of_either_are_inputs(embedder: Server) -> None:
    ids = embedder.post("/tokenize", prompt="a b c").json["tokens"]
    text = embeddings(embedder, input="a b c")
    for form in (ids, [ids], ["a b c"]):
        assert np.array_equal(embeddings(embedder, input=form), text)
    assert np.array_equal(embeddings(embedder, input="b", prompt_name="query"), embeddings(embedder, input="a a b"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    embedder.state.chat_template = template
    try:
        chat = embeddings(embedder, messages=[{"role": "user", "content": "a b c"}], add_special_tokens=True)
    finally:
        embedder.state.chat_template = None
    assert np.array_equal(chat, text)


@pytest.mark.native_ops
def test_many_requests_at_once_get_the_bits_that_each_gets_alone(embedder: Server) -> None:
    inputs = [["a", "b c"], ["d e f g h i j"], ["k"] * 5] * 6
    alone = [embeddings(embedder, input=one) for one in inputs[:3]]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: embeddings(embedder, input=one), inputs))
    assert all(np.array_equal(got, alone[index % 3]) for index, got in enumerate(together))


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [[4], "a"]}, "input"),
        ({"input": [4, -1]}, "input"),
        ({"input": [4, 1.5]}, "input"),
        ({"input": [10**30]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "dimensions": 99999}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": ""}, "encoding_format"),
        ({"input": "a", "endianness": ""}, "endianness"),
        ({"input": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"input": [4], "instruction": "a"}, "instruction"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "embed_dtype": "fp8"}, "embed_dtype"),
        ({"input": "a", "truncate_prompt_tokens": 99}, "truncate_prompt_tokens"),
        ({"input": "a", "prompt_name": "none"}, "prompt_name"),
        ({"input": "a", "padding": True}, "padding"),
        ({"input": [[4] * 99]}, "input"),
    ],
)
def test_wrong_requests_are_refused_in_openais_shape(
    embedder: Server, fields: dict[str, Any], parameter: str | None
) -> None:
    reply = embedder.post("/v1/embeddings", **fields)
    assert reply.status == 400 and reply.error["param"] == parameter
    assert embeddings(embedder, input="a", dimensions=8).shape == (1, 8)


def test_cohere_clients_get_their_shape_and_types(embedder: Server) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    reply = embedder.post(
        "/v2/embed", model="embedder", texts=["b"], input_type="search_query", embedding_types=types
    ).json
    floats = np.array(reply["embeddings"]["float"], np.float32)
    assert np.array_equal(floats, embeddings(embedder, input="a a b"))  # input_type names the model's own prompt
    bits = np.packbits(floats[0] > 0)
    assert reply["embeddings"]["ubinary"] == [bits.tolist()]
    assert reply["embeddings"]["binary"] == [(bits.astype(int) - 128).tolist()]
    assert np.abs(np.array(reply["embeddings"]["int8"]) - floats * 127).max() <= 0.5
    assert reply["texts"] == ["b"] and reply["meta"]["billed_units"]["input_tokens"] == 5
    assert embedder.post("/v2/embed", texts=[]).status == 400
    for name, value in {"max_tokens": 0, "output_dimension": 3, "truncate": ""}.items():
        error = embedder.post("/v2/embed", texts=["a"], **{name: value}).error
        assert error["param"] == name and name in error["message"]
    assert embedder.post("/v2/embed", texts=["a"], embedding_types=["fp4"]).status == 400
    assert embedder.post("/v2/embed", texts=["a b c d e f g h i j k l m"], truncate="NONE").error["param"] == "texts"
    assert embedder.post("/v2/embed", texts=["a b c"], truncate="NONE").status == 200


def test_pooling_gives_vectors_for_texts_and_tokens(embedder: Server) -> None:
    whole = embedder.post("/pooling", input="a b c").json["data"][0]
    assert whole["object"] == "pooling" and np.array_equal(whole["data"], embeddings(embedder, input="a b c")[0])
    tokens = embedder.post("/pooling", input="a b c", task="token_embed").json["data"][0]["data"]
    assert np.array(tokens).shape == (5, 8)
    assert embedder.post("/pooling", input="a", task="plugin").error["param"] == "task"


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_sorts_cuts_and_names_places(embedder: Server, reranker: Server, path: str) -> None:
    documents = ["x y z", "a b", {"text": "c d"}, "a b"]
    for server in (embedder, reranker):
        reply = server.post(path, query="a b", documents=documents).json
        scores = [result["relevance_score"] for result in reply["results"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 4
        places = {result["index"]: result for result in reply["results"]}
        assert places[2]["document"] == {"text": "c d"} and set(places) == {0, 1, 2, 3}
        assert places[1]["relevance_score"] == places[3]["relevance_score"]  # twice the same document
        best = server.post(path, query="a b", documents=documents, top_n=1, return_documents=False).json["results"]
        assert best == [{"index": reply["results"][0]["index"], "relevance_score": scores[0]}]
        assert server.post(path, query="a", documents=[]).error["param"] == "documents"
        assert server.post(path, query="a", documents=["b"], top_n=-1).error["param"] == "top_n"
        assert server.post(path, documents=["b"]).status == 400


@pytest.mark.native_ops
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_one_to_many_and_pair_by_pair(embedder: Server, reranker: Server, path: str) -> None:
    for server in (embedder, reranker):
        many = server.post(path, text_1="a b", text_2=["a b", "c"]).json
        pairs = server.post(path, data_1=["a b", "a b"], data_2=["a b", "c"]).json
        queries = server.post(path, queries="a b", documents=["a b", "c"]).json
        scores = [[item["score"] for item in reply["data"]] for reply in (many, pairs, queries)]
        assert scores[0] == scores[1] == scores[2] and many["data"][1]["index"] == 1
        assert server.post(path, text_1=["a", "b"], text_2=["c"]).status == 400
        assert server.post(path, text_1="a", data_1="b", text_2="c").status == 400
    same, other = [item["score"] for item in embedder.post(path, text_1="a b", text_2=["a b", "c"]).json["data"]]
    assert abs(same - 1) < 1e-6 > other - 1


def test_classes_carry_labels_and_probabilities(reranker: Server, embedder: Server) -> None:
    (data,) = reranker.post("/classify", input="a b").json["data"]
    assert data["label"] == "LABEL_0" and data["num_classes"] == 1 and 0 < data["probs"][0] < 1
    (raw,) = reranker.post("/classify", input="a b", use_activation=False).json["data"]
    assert abs(1 / (1 + np.exp(-raw["probs"][0])) - data["probs"][0]) < 1e-6
    assert embedder.post("/classify", input="a b").error["param"] == "task"


# -- refusals, files ---------------------------------------------------------------------------------------------------


def test_pooling_models_refuse_to_generate_and_others_to_pool(embedder: Server, tiny: Server) -> None:
    messages = [{"role": "user", "content": "a"}]
    for path, fields in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": messages, "max_tokens": 5}),
    ):
        reply = embedder.post(path, model="embedder", **fields)
        assert reply.status == 400 and "pooling model" in reply.body.decode()
    for path, fields in (
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/embed", {"texts": ["a"]}),
    ):
        reply = tiny.post(path, **fields)
        assert reply.status == 400 and "generates text" in reply.error["message"]


@pytest.mark.native_ops
def test_batch_files_embed_and_rerank(embedding_engine: Engine, embedder: Server) -> None:
    bodies = {"/v1/embeddings": {"input": "a b c"}, "/v2/rerank": {"query": "a", "documents": ["b", "a"]}}
    lines = [
        json.dumps({"custom_id": url, "method": "POST", "url": url, "body": body}).encode()
        for url, body in bodies.items()
    ]
    written: list[bytes] = []
    counts = embedding_engine.call(run_batch(embedder.state, lines, written.append, 4))
    first, second = (json.loads(line)["response"]["body"] for line in written)
    assert counts.completed == 2
    assert np.array_equal(first["data"][0]["embedding"], embeddings(embedder, input="a b c")[0])
    assert second["results"][0]["index"] == 1
