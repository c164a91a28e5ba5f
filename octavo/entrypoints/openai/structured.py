"""From `response_format` and `structured_outputs` of a request to the grammar that its answer must follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.unbuilt_fields import refuse_unknown
from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import wrong
from octavo.types.structured_params import StructuredOutputsParams

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def structured_outputs_of(request: GenerationRequest) -> StructuredOutputsParams | None:
    """Return what the answer must follow, or None; raises InvalidRequestError naming the field."""
    by_format = _from_response_format("response_format", request.response_format)
    wish = request.structured_outputs
    if wish is None or wish == {}:
        return by_format
    if by_format is not None:
        raise InvalidRequestError(
            "response_format and structured_outputs exclude each other; leave one of them out", "structured_outputs"
        )
    if not isinstance(wish, dict):
        raise wrong("structured_outputs", "an object", wish)
    try:
        return msgspec.convert(wish, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequestError):
            raise error.__cause__ from None
        raise InvalidRequestError(f"structured_outputs: {error}", "structured_outputs") from error


def _from_response_format(field: str, response_format: object) -> StructuredOutputsParams | None:
    """Read OpenAI's object; its schema stands under json_schema. field: its name, for errors"""
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise wrong(field, "an object", response_format)
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "json_schema":
        described = response_format.get("json_schema")
        if not isinstance(described, Mapping):
            raise wrong(f"{field}.json_schema", 'an object with "name" and "schema"', described, field)
        return _from_json_schema(f"{field}.json_schema", described, field)
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=dict(response_format))
    raise wrong(f"{field}.type", f"one of {', '.join(RESPONSE_FORMATS)}", kind)


def _from_json_schema(where: str, described: Mapping[str, Any], field: str) -> StructuredOutputsParams:
    """Read {name, schema, strict, description}. Schemas are always enforced, so `strict` changes nothing."""
    schema = described.get("schema")
    if not isinstance(schema, dict):
        raise wrong(f"{where}.schema", "a JSON schema (an object)", schema, field)
    if not isinstance(described.get("strict"), (bool, type(None))):
        raise wrong(f"{where}.strict", "a bool", described["strict"], field)
    return StructuredOutputsParams(json=schema)


def from_text_format(text: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """Read `text` of a request to /v1/responses, where a schema has no object of its own."""
    wish = (text or {}).get("format")
    if isinstance(wish, Mapping) and wish.get("type") == "json_schema":
        return _from_json_schema("text.format", wish, "text.format")
    return _from_response_format("text.format", wish)


def from_output_config(output_config: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """Read `output_config` of a request to /v1/messages; raises InvalidRequestError."""
    refuse_unknown("output_config", output_config or {}, ("format", "effort"))
    wish = (output_config or {}).get("format")
    if wish is None:
        return None
    if not isinstance(wish, Mapping) or wish.get("type") != "json_schema":
        raise wrong("output_config.format", '{"type": "json_schema", "schema": …}', wish)
    return _from_json_schema("output_config.format", wish, "output_config.format")


def may_compile(request: GenerationRequest) -> bool:
    """Say whether preparing the request may take as long as a new grammar takes to compile."""
    kind = request.response_format.get("type") if isinstance(request.response_format, dict) else None
    return bool(request.structured_outputs) or kind in RESPONSE_FORMATS[1:]
