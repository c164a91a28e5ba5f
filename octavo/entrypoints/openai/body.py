"""From a request's bytes to a typed struct: size, type, JSON, duplicate names, fields that nobody knows.

Strict where two readers could understand a body differently (duplicate names, NaN, text that is not Unicode), lenient
about additional fields: they are ignored with one warning in the log, as OpenAI's clients expect.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar, cast, get_args, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from octavo.entrypoints.openai.errors import HTTPError
from octavo.errors import InvalidRequestError
from octavo.log import get_logger

logger = get_logger(__name__)

RequestType = TypeVar("RequestType", bound=msgspec.Struct)

INLINE_BYTES = 32 * 1024  # larger bodies are parsed on another thread
BODY_TIMEOUT_S = 60.0  # between two pieces of a body
_MAX_WARNED_FIELDS = 1000
_MAX_NAME_CHARS = 80


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Return a request's whole body; raises HTTPError 413 beyond max_bytes and 408 when the client stops sending."""
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size_bytes, more = 0, True
    while more:
        try:
            message = await asyncio.wait_for(receive(), BODY_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise HTTPError(408, f"no data of the request's body came for {BODY_TIMEOUT_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size_bytes += len(piece)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
        more = message.get("more_body", False)
    return b"".join(pieces)


def require_json(scope: Scope) -> None:
    """Raise HTTPError 415 unless the body is declared as JSON, and not compressed.

    This also keeps other sites' pages out: a browser sends JSON across origins only where CORS allows it.
    """
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise HTTPError(415, "compressed bodies are not taken; send JSON without Content-Encoding")
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPError(415, f"expected Content-Type: application/json, got {content_type or 'none'}")


async def parse_body(body: bytes, request_type: type[RequestType]) -> RequestType:
    """Return the request that a body holds; raises InvalidRequestError."""
    if len(body) <= INLINE_BYTES:
        return decode(body, request_type)
    return await asyncio.get_running_loop().run_in_executor(None, decode, body, request_type)


def decode(body: bytes, request_type: type[RequestType]) -> RequestType:
    """Parse and check a JSON object; raises InvalidRequestError that names the field."""
    value = load_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"the request's body must be a JSON object, got {_kind(value)}")
    return typed(value, request_type)


def typed(value: dict[str, Any], request_type: type[RequestType]) -> RequestType:
    """Check a decoded JSON object against a request's type; raises InvalidRequestError that names the field.

    16.0 is a whole number too: JSON knows one kind of number, and not every client can write integers.
    """
    written_as_floats = {
        name: int(number)
        for name, number in value.items()
        if type(number) is float and number.is_integer() and name in _whole_number_fields(request_type)
    }
    try:
        request = msgspec.convert({**value, **written_as_floats}, request_type)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    _warn_of_unknown_fields(value, request_type)
    return request


@functools.cache
def _whole_number_fields(request_type: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that hold an integer and no other number."""
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(request_type).items()}
    return frozenset(name for name, kinds in hints.items() if int in kinds and float not in kinds)


def load_json(body: bytes) -> object:
    """Parse JSON as RFC 8259 means it; raises InvalidRequestError."""
    try:
        text = body.decode("utf-8").removeprefix("\ufeff")  # a byte order mark, which some programs write before UTF-8
        value: object = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
        if "\\u" in text:  # only an escape can bring in half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the request's body is not UTF-8 (byte {error.start})") from None
    except UnicodeEncodeError:
        raise InvalidRequestError("the request's body holds a lone surrogate, which is not a character") from None
    except RecursionError:
        raise InvalidRequestError("the request's body is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise InvalidRequestError(
            f"the request's body is not JSON: {error.msg} ({where}column {error.colno})"
        ) from None
    except InvalidRequestError:
        raise
    except ValueError:
        raise InvalidRequestError("the request's body holds an integer of thousands of digits") from None
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(
            f"the request's body has {_shown(twice)} twice in one object", twice[:_MAX_NAME_CHARS]
        )
    return fields


def _refuse_constant(name: str) -> None:
    raise InvalidRequestError(f"the request's body holds {name}, which is not JSON; expected a finite number")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidRequestError(f"the request's body holds {_shown(text)}, which is too large for a number")
    return value


def _wrong_type(error: msgspec.ValidationError) -> InvalidRequestError:
    """Turn "Expected `int`, got `str` - at `$.n`" into a message that begins with the field."""
    what, _, path = str(error).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    top_level = field.partition(".")[0].partition("[")[0] or None
    if field.startswith("[") or not field:
        missing = what.removeprefix("Object missing required field `").rstrip("`")
        if missing != what:
            return InvalidRequestError(f"{missing} is required", missing)
        return InvalidRequestError(what)
    return InvalidRequestError(f"{field}: {what[0].lower()}{what[1:]}", top_level)


# Objects in a request that are read by hand: what they may hold.
_KNOWN_INSIDE = {
    "stream_options": ("include_usage", "continuous_usage_stats", "include_obfuscation"),
    "response_format": ("type", "json_schema", "structures", "triggers", "format"),
    "response_format.json_schema": ("name", "schema", "strict", "description"),
    "tools.function": ("name", "description", "parameters", "strict"),
}


def _warn_of_unknown_fields(value: dict[str, Any], request_type: type[msgspec.Struct]) -> None:
    warn_of_unknown(request_type.__name__, value, request_type.__struct_fields__)
    for path, known in _KNOWN_INSIDE.items():
        field, _, inner = path.partition(".")
        for item in value[field] if isinstance(value.get(field), list) else (value.get(field),):
            found = item.get(inner) if inner and isinstance(item, dict) else item
            if isinstance(found, dict):
                warn_of_unknown(f"{request_type.__name__}.{path}", found, known)


def warn_of_unknown(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Log, once for each name, that fields of a request are not known and were ignored."""
    for name in set(names).difference(known):
        key = f"{where}.{name[:_MAX_NAME_CHARS]}"
        if key not in _warned and len(_warned) < _MAX_WARNED_FIELDS:
            _warned.add(key)
            logger.warning("%s: the field %s is not known and was ignored", where, ascii(_shown(name))[1:-1])


def _kind(value: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _shown(name: str) -> str:
    return repr(name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 3] + "...")


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(413, f"the request's body is larger than {max_bytes} bytes (--max-request-bytes)")


_warned: set[str] = cast("set[str]", set())
