"""The one error of schema preparation: which keyword, where, and why it cannot be enforced."""

from __future__ import annotations

from octavo.errors import InvalidRequestError


class SchemaRefusedError(InvalidRequestError):
    """A JSON Schema is malformed, contradicts itself, or cannot be enforced exactly.

    `keyword` is the keyword to blame (an empty string when it is the schema as a whole) and `pointer` the JSON pointer
    of the schema object that holds it.
    """

    def __init__(self, reason: str, keyword: str, pointer: str) -> None:
        place = f"#{pointer}"
        where = f"keyword {keyword!r} at {place}" if keyword else f"schema at {place}"
        super().__init__(f"JSON schema cannot be enforced: {where}: {reason}", parameter="json_schema")
        self.reason = reason
        self.keyword = keyword
        self.pointer = pointer


class IndescribableError(SchemaRefusedError):
    """Values that break a rule in a way that no finite description has."""
