"""The W3C trace context of the HTTP request that a task answers; tasks that it starts have it too."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from starlette.types import Scope

from octavo.metrics.tracing import TRACE_HEADERS

_headers: ContextVar[Mapping[str, str] | None] = ContextVar("trace_headers", default=None)
_WANTED = {name.encode() for name in TRACE_HEADERS}


def enter(scope: Scope) -> None:
    """Note the trace context of a request, which this task answers."""
    found = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _WANTED}
    _headers.set(found or None)


def trace_headers() -> Mapping[str, str] | None:
    """Return the headers that say whose trace this is, or None."""
    return _headers.get()
