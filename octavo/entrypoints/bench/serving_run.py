"""A serving benchmark from a server's address to the results of all requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from octavo.entrypoints.bench.client import Client, ConnectionLost
from octavo.entrypoints.bench.dataset_arguments import tokenizer_of
from octavo.entrypoints.bench.datasets import BenchPrompt, DatasetOptions, make_prompts
from octavo.entrypoints.bench.load import LoadOptions, run_load
from octavo.entrypoints.bench.requests import BACKENDS, RequestOptions, RequestResult, send
from octavo.errors import ConfigError, RequestFailedError

_RETRY_S = 1.0


@dataclass(frozen=True)
class Target:
    """The server and how it is asked; None: the server's or the backend's own."""

    base_url: str
    backend: str
    endpoint: str | None
    headers: Mapping[str, str]
    verifies: bool
    model: str | None
    served_model_name: str | None
    tokenizer: str | None
    ready_timeout_s: float


@dataclass(frozen=True)
class MeasuredLoad:
    """Results in the order of the prompts; duration_s: from the first request to the last answer."""

    model: str
    tokenizer_name: str
    results: list[RequestResult]
    duration_s: float


async def measure(
    target: Target,
    prompts: DatasetOptions,
    load: LoadOptions,
    fields: Mapping[str, Any],
    num_warmups: int,
    shows_progress: bool,
) -> MeasuredLoad:
    """Send all prompts to the server. fields: further ones of every request's body.

    Raises ConfigError, or RequestFailedError when the server does not answer.
    """
    client = Client(target.base_url, target.headers, target.verifies)
    try:
        model, root = await _find_model(client, target)
        tokenizer_name = target.tokenizer or root
        requests = make_prompts(prompts, tokenizer_of(tokenizer_name))
        backend = BACKENDS[target.backend]
        options = RequestOptions(target.served_model_name or model, target.endpoint or backend.path, fields)
        send_one = partial(send, client, backend, options)
        await _warm_up(send_one, requests[0], num_warmups)
        with tqdm(total=len(requests), unit="request", disable=not shows_progress) as bar:
            started = time.perf_counter()
            results = await run_load(requests, load, send_one, bar.update)
            return MeasuredLoad(model, tokenizer_name, results, time.perf_counter() - started)
    finally:
        client.close()


async def _find_model(client: Client, target: Target) -> tuple[str, str]:
    """Return the model's name, and the one under which its tokenizer can be loaded."""
    cards = await _wait_for_server(client, target.ready_timeout_s)
    if target.model is None and not cards:
        raise ConfigError("the server lists no models; name one with --model")
    name = str(cards[0].get("id")) if target.model is None else target.model
    roots = [str(card["root"]) for card in cards if card.get("id") == name and card.get("root")]
    return name, roots[0] if roots else name


async def _wait_for_server(client: Client, timeout_s: float) -> list[dict[str, Any]]:
    """Return the server's models, once it answers."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return await _model_cards(client)
        except (ConnectionLost, RequestFailedError) as error:
            if time.monotonic() >= deadline:
                raise RequestFailedError(f"the server does not answer: {error}") from None
        await asyncio.sleep(_RETRY_S)


async def _model_cards(client: Client) -> list[dict[str, Any]]:
    async with client.request("GET", "/v1/models") as response:
        body = await response.read()
    if response.status != 200:
        hint = (
            "; the key comes from OCTAVO_API_KEY or --header Authorization='Bearer KEY'"
            if response.status == 401
            else ""
        )
        raise RequestFailedError(f"GET /v1/models gave status {response.status}{hint}")
    try:
        cards: list[dict[str, Any]] = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError):
        raise RequestFailedError("GET /v1/models gave no list of models") from None
    return cards


async def _warm_up(
    send_one: Callable[[BenchPrompt], Awaitable[RequestResult]], prompt: BenchPrompt, count: int
) -> None:
    for _ in range(count):
        result = await send_one(prompt)
        if result.error is not None:
            raise RequestFailedError(f"a warm-up request failed: {result.error}")
