"""What surrounds every endpoint: the log line and the counter of each request, keys, foreign pages."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter as Tally
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.entrypoints.openai import errors
from octavo.log import get_logger

logger = get_logger("octavo.access")


class RequestLog:
    """Logs and counts every HTTP request, and answers for exceptions that nothing else caught.

    root_path: where a proxy shows the server; paths may come with it or, where the proxy takes it off, without
    counts: (method, route, status) -> requests; the route is the table's path, not the client's, so it stays small
    """

    def __init__(
        self, app: ASGIApp, quiet_paths: Iterable[str], is_quiet: bool, shows_request_id: bool, root_path: str
    ) -> None:
        self._app = app
        self._root_path = root_path.rstrip("/")
        self._quiet_paths = frozenset(quiet_paths)
        self._is_quiet = is_quiet
        self._shows_request_id = shows_request_id
        self.counts: Tally[tuple[str, str, int]] = Tally()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        scope["root_path"] = self._root_path

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._shows_request_id:
                    self._add_request_id(scope, message)
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            if status:
                raise
            await errors.error_response(error)(scope, receive, watch)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _add_request_id(self, scope: Scope, message: Message) -> None:
        request_id = (
            dict(scope["headers"]).get(b"x-request-id")
            or hashlib.blake2b(repr((id(scope), time.time_ns())).encode(), digest_size=16).hexdigest().encode()
        )
        message["headers"] = [*message["headers"], (b"x-request-id", request_id)]

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.counts[scope["method"], route, status] += 1
        path = scope["path"]
        if self._is_quiet or path in self._quiet_paths:
            return
        client = scope.get("client")
        address = f"{client[0]}:{client[1]}" if client else "unix"
        # 0: the client went away before there was an answer
        logger.info("%s %s %s %d %.1f ms", address, scope["method"], path.__repr__()[1:-1], status, seconds * 1e3)


class KeyGuard:
    """Lets requests through that carry one of the keys; open_paths need none."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], open_paths: Iterable[str]) -> None:
        self._app = app
        # digests, so that comparing takes the same time for keys of any length
        self._digests = [_digest(key.encode()) for key in keys]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may_pass(scope):
            refusal = errors.HTTPError(
                401,
                "a valid API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await errors.error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._open_paths:
            return True
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        return any(matches)


class OriginGuard:
    """Refuses what a page of another origin sends with side effects, unless CORS allows that origin.

    A browser sends simple POST requests across origins without asking first; the answer would be hidden from the page,
    but the engine would have slept, or generated, by then.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS") and self._is_foreign(scope):
            refusal = errors.HTTPError(403, "pages of this origin may not use the server; see --allowed-origins")
            await errors.error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or "*" in self._allowed or origin in self._allowed:
            return False
        return urlsplit(origin).netloc.encode("latin-1") != headers.get(b"host", b"")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
