"""From exceptions to HTTP: status, and OpenAI's error object. Clients see messages of our own errors, never a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from octavo.entrypoints.openai.protocol.common import ErrorBody, ErrorResponse
from octavo.errors import EngineDeadError, InvalidRequestError, OverloadedError, RequestFailedError, UnsupportedError
from octavo.log import get_logger

logger = get_logger(__name__)


class HTTPError(Exception):
    """An answer that is not a success, with everything the client is told."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _clipped(message)
        self.parameter = parameter
        self.code = code
        self.headers = headers or {}


def _clipped(message: str) -> str:
    """Return a message that is short enough to be read: a request may quote a megabyte of itself."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


def as_http_error(error: BaseException) -> HTTPError:
    """Say what a client is told of an exception. One that is not of our own kind is logged, and not described."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, InvalidRequestError):
        return HTTPError(400, str(error), parameter=error.parameter)
    if isinstance(error, UnsupportedError):
        return HTTPError(400, str(error))
    if isinstance(error, EngineDeadError):
        return HTTPError(503, f"the engine is not running: {error}", headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, OverloadedError):
        return HTTPError(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, RequestFailedError):
        return HTTPError(500, str(error))
    logger.error("a request failed unexpectedly", exc_info=error)
    return HTTPError(500, "an internal error; the server's log has the details")


@contextmanager
def named_as_in(request: msgspec.Struct) -> Iterator[None]:
    """Make the engine's errors call a parameter as the request does."""
    try:
        yield
    except InvalidRequestError as error:
        known_as = _FIELD_NAMES.get(error.parameter or "", ())
        name = next((name for name in known_as if getattr(request, name, None) is not None), None)
        if name is not None:
            error.args = (str(error).replace(f"{error.parameter} must be", f"{name} must be", 1),)
            error.parameter = name
        raise


def error_body(error: HTTPError) -> ErrorResponse:
    """Return the JSON that describes an error."""
    return ErrorResponse(
        ErrorBody(
            error.message, _TYPES.get(error.status, _type_of(error.status)), error.parameter, error.code or error.status
        )
    )


def error_response(error: BaseException) -> Response:
    """Return the HTTP response for an exception."""
    described = as_http_error(error)
    return Response(
        msgspec.json.encode(error_body(described)),
        described.status,
        headers=dict(described.headers),
        media_type="application/json",
    )


def _type_of(status: int) -> str:
    """Return the phrase of a status as one word: 415 -> UnsupportedMediaTypeError."""
    words = HTTPStatus(status).phrase.replace("-", " ").split()
    return "".join(word[0].upper() + word[1:] for word in words) + "Error"


RETRY_AFTER_S = 1
MAX_MESSAGE_CHARS = 2000
_PROMPT_FIELDS = ("prompt", "input", "messages", "query")
_FIELD_NAMES: Mapping[str, tuple[str, ...]] = {  # of the engine's parameters: the first that a request sets
    "prompt": _PROMPT_FIELDS,
    "prompt_token_ids": _PROMPT_FIELDS,
    "data_1": ("data_1", "text_1", "queries", "query"),
    "data_2": ("data_2", "text_2", "documents", "items"),
    "max_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    "logprobs": ("top_logprobs",),
    "prompt_logprobs": ("prompt_logprobs", "logprobs"),
    "extra_args": ("vllm_xargs",),
    "beam_width": ("n",),
    "stop": ("stop_sequences",),
}
_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
