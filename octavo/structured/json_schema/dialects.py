"""The drafts of JSON Schema, and which keywords each of them has."""

from __future__ import annotations

DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020 = 4, 6, 7, 2019, 2020

DIALECTS = {
    "http://json-schema.org/draft-04/schema": DRAFT_4,
    "http://json-schema.org/draft-06/schema": DRAFT_6,
    "http://json-schema.org/draft-07/schema": DRAFT_7,
    "https://json-schema.org/draft/2019-09/schema": DRAFT_2019,
    "https://json-schema.org/draft/2020-12/schema": DRAFT_2020,
}
REFUSED_DIALECTS = {
    "http://json-schema.org/draft-03/schema": "draft 3",
    "http://json-schema.org/draft-02/schema": "draft 2",
    "http://json-schema.org/draft-01/schema": "draft 1",
}

# Keywords that speak of a value by itself.
NUMBER_KEYWORDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
STRING_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
ARRAY_KEYWORDS = frozenset(
    ("items", "additionalItems", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")
) | {"minContains", "maxContains"}
OBJECT_KEYWORDS = frozenset(
    ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties")
) | {"propertyNames"}
OWN_KEYWORDS = NUMBER_KEYWORDS | STRING_KEYWORDS | ARRAY_KEYWORDS | OBJECT_KEYWORDS | {"type"}
# Keywords that bring other schemas, or values, to bear on the same value.
IN_PLACE_KEYWORDS = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "$ref", "$dynamicRef", "$recursiveRef")
) | {"dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"}
# Where not in draft 4. Before that a keyword is an annotation.
FIRST_DIALECT = {
    "const": DRAFT_6,
    "contains": DRAFT_6,
    "propertyNames": DRAFT_6,
    "if": DRAFT_7,
    "dependentRequired": DRAFT_2019,
    "dependentSchemas": DRAFT_2019,
    "minContains": DRAFT_2019,
    "maxContains": DRAFT_2019,
    "unevaluatedItems": DRAFT_2019,
    "unevaluatedProperties": DRAFT_2019,
    "$recursiveRef": DRAFT_2019,
    "$dynamicRef": DRAFT_2020,
}


def is_in_dialect(keyword: str, dialect: int) -> bool:
    return FIRST_DIALECT.get(keyword, DRAFT_4) <= dialect and not (keyword == "$recursiveRef" and dialect > DRAFT_2019)


def is_assertion(keyword: str, dialect: int) -> bool:
    """Tell whether a keyword may restrict values."""
    return keyword in OWN_KEYWORDS or (keyword in IN_PLACE_KEYWORDS and is_in_dialect(keyword, dialect))
