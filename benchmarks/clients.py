#!/usr/bin/env python3
"""Other people's clients against `octavo serve`, each checked and not only run: lm-eval, litellm, LangChain, Cohere,
OpenAI's, Anthropic's, pydantic-ai.

usage: clients.py [--model smollm2-135m-instruct] [--only openai]      (scripts/try-clients makes the environment)

A line per check and a count at the end; the exit status says whether all held. What lm-eval scores is compared with
the engine's own log-probabilities, computed in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structured_clients
from served import serving

Attempt = Callable[[str, str], Iterator[structured_clients.Check]]

CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Egypt": "Cairo", "Peru": "Lima"}
CHOICE_TASK = """
task: capitals_chosen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""
WRITING_TASK = """
task: capitals_written
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: What is the capital of {{{{country}}}}?\\nAnswer: The capital of {{{{country}}}} is"
doc_to_target: "{{{{capital}}}}"
generation_kwargs: {{until: [".", ",", "\\n"], max_gen_toks: 12}}
filter_list: [{{name: strict, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match, ignore_case: true}}]
"""


def write_tasks(folder: Path) -> None:
    names = list(CAPITALS.values())
    rows = [
        {"country": country, "capital": capital, "choices": names, "label": names.index(capital)}
        for country, capital in CAPITALS.items()
    ]
    data = folder / "capitals.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("chosen", CHOICE_TASK), ("written", WRITING_TASK)):
        (folder / f"{name}.yaml").write_text(text.format(data=data))


def try_lm_eval(url: str, model: str) -> Iterator[tuple[str, bool, str]]:
    """Score choices and written answers; compare every score with the engine's own."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as name:
        write_tasks(Path(name))
        tasks = TaskManager(include_path=name, include_defaults=False)
        arguments = (
            f"model={model},base_url={url}/v1/completions,num_concurrent=4,max_retries=1,tokenized_requests=True"
        )
        results = simple_evaluate(
            "local-completions",
            model_args=arguments,
            tasks=["capitals_chosen", "capitals_written"],
            task_manager=tasks,
            bootstrap_iters=0,
        )
        chat = simple_evaluate(
            "local-chat-completions",
            model_args=arguments.replace("/v1/completions", "/v1/chat/completions").rsplit(",", 1)[0],
            tasks=["capitals_written"],
            task_manager=tasks,
            bootstrap_iters=0,
            apply_chat_template=True,
        )
    samples = results["samples"]["capitals_chosen"]
    worst = _worst_difference(model, samples)
    yield "lm-eval: log-likelihoods are the engine's own", worst < 1e-4, f"largest difference {worst:.1e}"
    scores = results["results"]
    chosen = scores["capitals_chosen"]["acc,none"]
    yield "lm-eval: loglikelihood", chosen >= 0.8, f"accuracy {chosen:.2f}"
    written = scores["capitals_written"]["exact_match,strict"]
    yield "lm-eval: generate_until", written >= 0.8, f"exact match {written:.2f}"
    answers = [sample["resps"][0][0] for sample in chat["samples"]["capitals_written"]]
    yield "lm-eval: generate_until by chat", all(answers) and len(answers) == len(CAPITALS), repr(answers[0])


def _worst_difference(model: str, samples: list[dict[str, Any]]) -> float:
    from octavo import LLM, SamplingParams

    llm = LLM(model, max_model_len=512, enable_prefix_caching=False)
    tokenizer = llm.get_tokenizer()
    worst = 0.0
    for sample in samples:
        for request, ((logprob, is_greedy),) in zip(sample["arguments"], sample["resps"], strict=True):
            context = tokenizer.encode(request[0], add_special_tokens=False)
            whole = tokenizer.encode(request[0] + request[1], add_special_tokens=False)
            params = SamplingParams(max_tokens=1, prompt_logprobs=1)
            (output,) = llm.generate([{"prompt_token_ids": whole}], params, use_tqdm=False)
            positions = list(zip(whole, output.prompt_logprobs or [], strict=True))[len(context) :]
            own = sum(candidates[token].logprob for token, candidates in positions)
            assert (own == sum(max(c.logprob for c in one.values()) for _, one in positions)) == is_greedy
            worst = max(worst, abs(own - logprob))
    return worst


def try_litellm(url: str, model: str) -> Iterator[tuple[str, bool, str]]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look at the network
    import litellm

    options: dict[str, Any] = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "temperature": 0}
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    whole = litellm.completion(messages=ask, max_tokens=24, **options)
    text = whole.choices[0].message.content
    yield "litellm: completion", "Paris" in text and whole.usage.completion_tokens <= 24, repr(text)
    wishes = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=ask, max_tokens=24, **wishes, **options))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    yield "litellm: stream", streamed == text, f"{len(chunks)} chunks"
    rebuilt = litellm.stream_chunk_builder(chunks)
    yield "litellm: usage of a stream", rebuilt.usage.total_tokens == whole.usage.total_tokens, str(rebuilt.usage)[:60]
    several = asyncio.run(_litellm_at_once(options, ask))
    yield "litellm: 8 at once", several == [text] * 8, f"{len(set(several))} different"
    cut = litellm.completion(messages=ask, max_tokens=24, stop=["Paris"], logprobs=True, top_logprobs=2, **options)
    entry = cut.choices[0].logprobs.content[0]
    yield (
        "litellm: stop and logprobs",
        "Paris" not in cut.choices[0].message.content,
        f"{entry.token!r} {entry.logprob:.3f}",
    )
    try:
        litellm.completion(messages=ask, max_tokens=24, **{**options, "model": "hosted_vllm/nobody"})
        yield "litellm: no such model", False, "was answered"
    except litellm.NotFoundError as error:
        yield "litellm: no such model", True, str(error)[:60]


async def _litellm_at_once(options: dict[str, Any], ask: list[dict[str, str]]) -> list[str]:
    import litellm

    calls = [litellm.acompletion(messages=ask, max_tokens=24, **options) for _ in range(8)]
    return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]


def try_langchain(url: str, model: str) -> Iterator[tuple[str, bool, str]]:
    import openai
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI, OpenAI
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        country: str

    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "model": model, "temperature": 0}
    chat = ChatOpenAI(max_tokens=24, **options)
    messages = [SystemMessage("You are a helpful assistant."), HumanMessage("What is the capital of France?")]
    answer = chat.invoke(messages)
    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create(
        model=model,
        temperature=0,
        max_tokens=24,
        messages=[
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
    )
    is_same = answer.content == plain.choices[0].message.content
    yield "LangChain: invoke", is_same and len(answer.content) > 0, f"{answer.content!r} {answer.usage_metadata}"
    streamed = list(chat.stream(messages))
    yield "LangChain: stream", "".join(part.content for part in streamed) == answer.content, f"{len(streamed)} parts"
    chain = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | chat
    batch = chain.batch([{"country": country} for country in CAPITALS])
    right = sum(capital in message.content for capital, message in zip(CAPITALS.values(), batch, strict=True))
    yield "LangChain: a chain in a batch", 2 * right > len(CAPITALS), f"{right} of {len(CAPITALS)} right"
    long = ChatOpenAI(max_tokens=80, **options)
    city = long.with_structured_output(City, method="json_schema").invoke("Name the capital of France and its country.")
    yield "LangChain: structured output", isinstance(city, City), repr(city)
    text = OpenAI(max_tokens=8, **options).invoke("The capital of France is")
    yield "LangChain: completion", "Paris" in text, repr(text)


def try_embeddings(url: str, model: str) -> Iterator[tuple[str, bool, str]]:
    """Embed and rerank with LangChain's and Cohere's clients; every number is compared with the engine's own."""
    import cohere
    import numpy as np
    from langchain_openai import OpenAIEmbeddings

    from octavo import LLM

    texts, query = ["Cats sit on mats.", "Prices rose in May.", "Kittens like rugs."], "Where do cats sit?"
    llm = LLM(model)
    own = np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])
    scores = [output.outputs.score for output in llm.score(query, texts, use_tqdm=False)]
    client = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model=model, check_embedding_ctx_length=False)
    vectors = np.array(client.embed_documents(texts))
    yield "LangChain: embed_documents", np.array_equal(vectors, own), f"{vectors.shape}"
    yield "LangChain: embed_query", np.array_equal(client.embed_query(texts[0]), own[0]), ""
    reranker = cohere.ClientV2("none", base_url=url)
    ranks = reranker.rerank(model=model, query=query, documents=texts, top_n=2).results
    best = sorted(range(3), key=lambda index: -scores[index])[:2]
    right = [rank.index for rank in ranks] == best and ranks[0].relevance_score == scores[best[0]]
    yield "Cohere: rerank", right, f"{[(rank.index, round(rank.relevance_score, 3)) for rank in ranks]}"
    embedded = reranker.embed(model=model, texts=texts, input_type="search_document", embedding_types=["float", "int8"])
    floats = np.array(embedded.embeddings.float_)
    yield "Cohere: embed", np.array_equal(floats, own), f"{floats.shape} and {len(embedded.embeddings.int8)} in int8"


TRIES = (
    try_lm_eval,
    try_litellm,
    try_langchain,
    structured_clients.try_openai,
    structured_clients.try_anthropic,
    structured_clients.try_pydantic_ai,
    structured_clients.try_langchain_tools,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--only", default="", help="a part of the name of what to try")
    args = parser.parse_args()
    results: list[bool] = []
    attempts = {args.model: TRIES, "all-minilm-l6-v2": (try_embeddings,)}
    for model, tries in attempts.items():
        chosen = [attempt for attempt in tries if args.only in attempt.__name__]
        if not chosen:
            continue
        with serving(model) as server:
            for attempt in chosen:
                results += [_show(check) for check in _checks(attempt, server.url, model)]
    print(f"{sum(results)} of {len(results)} hold")
    return 0 if results and all(results) else 1


def _checks(attempt: Attempt, url: str, model: str) -> Iterator[structured_clients.Check]:
    """Yield the checks of an attempt, the last one false if it broke off."""
    try:
        yield from attempt(url, model)
    except Exception as error:
        yield f"{attempt.__name__} broke off", False, f"{type(error).__name__}: {error}"


def _show(check: structured_clients.Check) -> bool:
    name, holds, detail = check
    print(f"{'ok   ' if holds else 'WRONG'} {name:52s} {detail[: 80 if holds else 400]}", flush=True)
    return holds


if __name__ == "__main__":
    sys.exit(main())
