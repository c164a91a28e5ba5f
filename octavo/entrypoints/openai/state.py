"""ServerState: what every endpoint is given. One engine, the server's options, and the counters they share."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from octavo.entrypoints.answers import AnswerFormats, choose_formats
from octavo.entrypoints.openai.adapters import ServedAdapters
from octavo.entrypoints.openai.errors import HTTPError
from octavo.entrypoints.openai.live_view import LiveView
from octavo.entrypoints.openai.logprobs import TokenNames
from octavo.entrypoints.openai.peers import Peers
from octavo.entrypoints.openai.response_store import ResponseStore
from octavo.entrypoints.openai.runner import JobRunner
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.adapters import LoRARequest
from octavo.utils.names import closest_names

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

Result = TypeVar("Result")

_NUM_PREPARING_THREADS = 2  # templates and tokenizers; enough to keep one long prompt from delaying the others
_NUM_GRAMMAR_THREADS = 128  # they mostly wait; so those with known grammars pass those that wait for new ones
_BULKY_BYTES = 256 * 1024  # tokenised in less than half a second


@dataclass(frozen=True)
class RequestContext:
    """What is known of an HTTP request besides its body.

    request_id: the client's own, if it sent one; path: parameters in the path
    """

    request_id: str | None
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    path: dict[str, str] = field(default_factory=dict)

    @property
    def is_bulky(self) -> bool:
        """Whether the body is so large, or of unknown size, that working on it may take long."""
        size = self.headers.get("content-length", "")
        return not size.isdigit() or int(size) > _BULKY_BYTES


@dataclass(frozen=True)
class ServerCounts:
    """What has only grown since the start. http_requests: by method, route and status; rejections: by limit"""

    http_requests: dict[tuple[str, str, int], int]
    rejections: dict[str, int]


class ServerState:
    """Shared by all endpoints of one server process. chat_template: Jinja source that replaces the model's own."""

    def __init__(
        self, engine: AsyncLLM, args: ServerArgs, model_names: Sequence[str] = (), chat_template: str | None = None
    ) -> None:
        """model_names: names under which the model is served; () = the engine's own"""
        self.engine = engine
        self.args = args
        self.model_names = tuple(model_names) or (engine.model_config.served_model_name,)
        self.peers = Peers(engine)
        self.adapters = ServedAdapters(engine, self.peers, self.model_names)
        self.chat_template = chat_template
        self.formats = self._answer_formats()
        self.created = int(time.time())
        self.runner = JobRunner(engine, args)
        self.responses = ResponseStore()
        self.live_view = LiveView(engine)
        self.http_counts: Mapping[tuple[str, str, int], int] = {}  # set by build_app: method, route, status
        self.fingerprint = _fingerprint(engine)
        self.peers.offer(server_counts=self._counts, num_requests=self._num_requests)
        self._threads = ThreadPoolExecutor(_NUM_PREPARING_THREADS, "octavo-prepare")
        self._bulk_threads = ThreadPoolExecutor(1, "octavo-prepare-bulk")
        self._grammar_threads = ThreadPoolExecutor(_NUM_GRAMMAR_THREADS, "octavo-prepare-grammar")
        self._bulk_grammar_threads = ThreadPoolExecutor(1, "octavo-prepare-bulk-grammar")

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.engine.tokenizer

    @property
    def max_model_len(self) -> int:
        return self.engine.model_config.max_model_len

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises HTTPError 400 when the engine has none."""
        if self.tokenizer is None:
            raise HTTPError(
                400, "this server has no tokenizer (skip_tokenizer_init); it takes and gives token ids only"
            )
        return self.tokenizer

    def check_generates(self) -> None:
        """Raise HTTPError 400 when the model pools: its endpoints are others."""
        if self.engine.model_config.pooling is not None:
            raise HTTPError(
                400,
                f"{self.model_names[0]} is a pooling model and generates no text; use /v1/embeddings, /classify, "
                "/score, /rerank or /pooling",
            )

    async def counts_of_all(self) -> ServerCounts:
        """Return what all server processes of the engine have counted together."""
        answers = await self.peers.call("server_counts")
        http_requests: Tally[tuple[str, str, int]] = Tally()
        rejections: Tally[str] = Tally()
        for kind, *key, count in chain.from_iterable(answers):
            if kind == "http":
                method, route, status = key
                http_requests[method, route, status] += count
            else:
                rejections[key[0]] += count
        return ServerCounts(http_requests, rejections)

    async def num_requests_of_all(self) -> int:
        """Return how many generation requests all server processes have in work."""
        return sum(await self.peers.call("num_requests"))

    async def _counts(self) -> list[tuple[str | int, ...]]:
        """Return rows of a name, by which all processes' are added up, and a number."""
        http = [("http", *key, count) for key, count in self.http_counts.items()]
        return [*http, *(("rejected", limit, count) for limit, count in self.runner.admission.rejections.items())]

    async def _num_requests(self) -> int:
        return self.runner.admission.num_requests

    def _answer_formats(self) -> AnswerFormats:
        """Decide how calls and reasoning are recognised; raises ConfigError for names that nobody knows."""
        if self.engine.model_config.pooling is not None:
            return AnswerFormats()
        templates = self.tokenizer.chat_templates if self.tokenizer is not None else {}
        default = self.chat_template or templates.get("default")
        return choose_formats(
            self.args.tool_call_parser,
            self.engine.config.structured_outputs.reasoning_parser,
            self.chat_template or templates.get("tool_use") or default,
            default,
            self.args.enable_auto_tool_choice,
            self.args.tool_strict_level != "none",
        )

    def token_names(self, as_token_ids: bool | None) -> TokenNames:
        """Return how a request's logprobs name tokens."""
        wish = self.args.return_tokens_as_token_ids if as_token_ids is None else as_token_ids
        return TokenNames(self.tokenizer, wish)

    def model_name(self, asked_for: str | None) -> str:
        """Return the name that a response carries; raises HTTPError 404 for a model that is not served."""
        if asked_for is None or asked_for == "":
            return self.model_names[0]
        if asked_for not in self.model_names and asked_for not in self.adapters.requests:
            shown = asked_for if len(asked_for) <= 200 else asked_for[:197] + "..."
            raise HTTPError(
                404,
                f"the model {shown!r} does not exist here; served: "
                f"{', '.join((*self.model_names, *self.adapters.requests))}"
                f"{closest_names(shown, (*self.model_names, *self.adapters.requests))}",
                parameter="model",
                code="model_not_found",
            )
        return asked_for

    def lora_request(self, model: str | None) -> LoRARequest | None:
        """Return the adapter that a model's name stands for; None for the model itself."""
        return self.adapters.requests.get(model or "")

    async def prepare(self, work: Callable[[], Result], is_bulky: bool = False, may_compile: bool = False) -> Result:
        """Run work that takes time (templates, tokenisation) off the event loop; return what it returns.

        Bulky requests have a thread of their own, so that they delay each other and nobody else. So have those that may
        wait until a grammar is compiled (by another process), and those that are both.
        """
        if may_compile:
            threads = self._bulk_grammar_threads if is_bulky else self._grammar_threads
        else:
            threads = self._bulk_threads if is_bulky else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """Let the threads go; the engine is the caller's."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._bulk_threads.shutdown(wait=False, cancel_futures=True)
        self._grammar_threads.shutdown(wait=False, cancel_futures=True)
        self._bulk_grammar_threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class RequestIds:
    """The two ids of a generation request.

    shown: what the response carries, "cmpl-" or alike before the client's own id or a random one
    engine: never shared by two live requests, even if clients use the same id, so that an abort hits one request
    """

    shown: str
    engine: str


def new_request_ids(prefix: str, header_id: str | None, body_id: str | None) -> RequestIds:
    """Return the ids of a new request; an id in the header wins over one in the body."""
    base = header_id or body_id
    if base is None:
        shown = f"{prefix}-{secrets.token_hex(16)}"
        return RequestIds(shown, shown)
    if len(base) > _MAX_ID_CHARS or not base.isprintable():
        raise HTTPError(400, f"request_id must be at most {_MAX_ID_CHARS} printable characters", parameter="request_id")
    return RequestIds(f"{prefix}-{base}", f"{prefix}-{base}-{secrets.token_hex(4)}")


_MAX_ID_CHARS = 256


def _fingerprint(engine: AsyncLLM) -> str:
    """Return what tells whether two answers with the same seed may differ: the version, the model, the computation."""
    from octavo import __version__

    model = engine.model_config
    facts = repr((__version__, model, engine.config.parallel.world_size))
    return f"octavo-{__version__}-{hashlib.blake2b(facts.encode(), digest_size=4).hexdigest()}"
