"""Preparation of JSON Schemas: whatever a schema says is enforced by the grammar, or refused with the keyword named."""

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.prepare import UNIQUE_PLACES, prepare_schema
from octavo.structured.json_schema.values import JsonValue

__all__ = ["UNIQUE_PLACES", "JsonValue", "SchemaRefusedError", "prepare_schema"]
