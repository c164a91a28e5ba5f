"""What headers tell the engine of the HTTP request that a task answers: the trace context (W3C), a replica (vLLM).

Tasks that the task starts have them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from starlette.types import Scope

from octavo.errors import InvalidRequestError
from octavo.metrics.tracing import TRACE_HEADERS
from octavo.types.sampling_checks import shown

_headers: ContextVar[Mapping[str, str] | None] = ContextVar("engine_headers", default=None)
_RANK_HEADER = "x-data-parallel-rank"
_WANTED = {name.encode() for name in (*TRACE_HEADERS, _RANK_HEADER)}


def enter(scope: Scope) -> None:
    """Note the headers of a request, which this task answers."""
    found = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _WANTED}
    _headers.set(found or None)


def trace_headers() -> Mapping[str, str] | None:
    """Return the headers that say whose trace this is, maybe among others, or None."""
    return _headers.get()


def data_parallel_rank() -> int | None:
    """Return the replica that the request is for, or None; raises InvalidRequestError unless it is a number."""
    text = (_headers.get() or {}).get(_RANK_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequestError(
            f"X-data-parallel-rank must be a whole number, got {shown(text)}", "data_parallel_rank"
        )
    return int(text[:_MAX_DIGITS])


_MAX_DIGITS = 9
