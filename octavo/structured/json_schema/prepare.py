"""`prepare_schema`: a JSON Schema to one that llguidance enforces exactly, or an error that names the keyword."""

from __future__ import annotations

import msgspec

from octavo.structured.json_schema.document import Document
from octavo.structured.json_schema.emit import Emitter
from octavo.structured.json_schema.expand import Expander
from octavo.structured.json_schema.limits import Budget
from octavo.structured.json_schema.shapes import SchemaTerm
from octavo.structured.json_schema.values import JsonValue, check_is_json

UNIQUE_PLACES = "x-unique-places"
# Without \u escapes every string has one spelling. Otherwise llguidance lets {"\u0061": ...} pass by the rules for "a".
GUIDANCE_OPTIONS: dict[str, JsonValue] = {"json_allowed_escapes": 'nrbtf\\"'}


def prepare_schema(schema: JsonValue, *, disable_additional_properties: bool = False) -> dict[str, JsonValue]:
    """Rewrite a JSON Schema (draft 4 to 2020-12) for llguidance in its strict mode.

    schema: the schema as parsed JSON; it is not changed
    disable_additional_properties: objects that name properties allow no others, unless the schema speaks of them

    Every text that the result admits is a valid instance of `schema`, formats counting as annotations, provided that
    arrays hold distinct items where a list of `Place`, if there is one under UNIQUE_PLACES, says so: to be taken out,
    llguidance cannot see to it. Raises SchemaRefusedError for what is malformed, has no value, refers outside, is too
    large, or cannot be enforced. A pure function.
    """
    check_is_json(schema)
    document = Document(schema)
    expander = Expander(document, Budget())
    emitter = Emitter(expander, close_objects=disable_additional_properties)
    root = (SchemaTerm(0),)
    result = emitter.emit(root)
    places = emitter.unique_places(root)
    if places:
        result[UNIQUE_PLACES] = msgspec.to_builtins(places)
    return {"x-guidance": dict(GUIDANCE_OPTIONS), **result}
