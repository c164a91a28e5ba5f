"""StructuredOutputsParams: the grammar that a request's text must follow."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.types import sampling_checks as checks

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
MAX_JSON_NESTING = 64


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one constraint, and options. Raises InvalidRequestError for none, several, or a malformed one.

    json: a JSON schema, as text or decoded; json_object: any JSON object; choice: one of these texts
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        name = "structured_outputs"
        given = [constraint for constraint in CONSTRAINTS if getattr(self, constraint) is not None]
        if len(given) != 1:
            raise checks.wrong(name, f"exactly one of {', '.join(CONSTRAINTS)}", given or "none of them")
        if self.json_object is False:
            raise checks.wrong(f"{name}.json_object", "True or left out", False)
        if self.choice is not None and not checks.as_texts(f"{name}.choice", self.choice):
            raise checks.wrong(f"{name}.choice", "a non-empty list of strings", self.choice)
        if self.regex is not None and "\0" in self.regex:
            raise checks.wrong(f"{name}.regex", "without NUL characters", self.regex)
        for constraint in ("regex", "grammar", "structural_tag"):
            value = getattr(self, constraint)
            if value is not None and not isinstance(value, str):
                raise checks.wrong(f"{name}.{constraint}", "a string", value)
        self._verify_json()

    def _verify_json(self) -> None:
        if self.json is None:
            return
        name = "structured_outputs.json"
        if isinstance(self.json, str):
            try:
                schema: object = msgspec.json.decode(self.json)
            except (msgspec.DecodeError, RecursionError) as error:
                raise checks.wrong(name, f"valid JSON ({error})", self.json) from None
        elif isinstance(self.json, dict):
            schema = self.json
        else:
            raise checks.wrong(name, "a JSON schema as text or dict", self.json)
        if _depth_exceeds(schema, MAX_JSON_NESTING):
            raise checks.wrong(name, f"nested at most {MAX_JSON_NESTING} deep", "a deeper schema")


def _depth_exceeds(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return False
        level = below
    return True
