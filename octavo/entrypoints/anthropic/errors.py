"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from octavo.entrypoints.anthropic.protocol import AnthropicError, AnthropicErrorBody
from octavo.entrypoints.openai.errors import as_http_error


def error_response(error: BaseException) -> Response:
    """Return the HTTP response for an exception."""
    described = as_http_error(error)
    body = msgspec.json.encode(error_body(error))
    return Response(body, described.status, headers=dict(described.headers), media_type="application/json")


def error_body(error: BaseException) -> AnthropicError:
    """Return the JSON that describes an exception."""
    described = as_http_error(error)
    return AnthropicError(AnthropicErrorBody(_TYPES.get(described.status, "api_error"), described.message))


_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
}
