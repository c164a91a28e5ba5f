"""StructuredOutputsParams: the grammar that a request's text must follow."""

from __future__ import annotations

import json as json_module
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError
from octavo.types import sampling_checks as checks
from octavo.types.parameter_names import NamedParameters

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
MAX_JSON_NESTING = 64
# Far above what is of use; what is smaller is bounded by the time that compiling it may take.
MAX_SOURCE_BYTES = 2**20
MAX_REGEX_BYTES = 2**16


class StructuredOutputsParams(
    msgspec.Struct,
    metaclass=NamedParameters,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Exactly one constraint, and options. Raises InvalidRequestError for none, several, or a malformed one.

    json: a JSON schema, as text or decoded; json_object: any JSON object; choice: one of these texts
    regex: the whole text must match; grammar: Lark, or GBNF/EBNF with a rule `root`
    structural_tag: text or decoded; begins and ends of passages that must follow schemas of their own
    disable_any_whitespace: True: JSON without white space; False: white space allowed; None: as the engine is set up
    disable_additional_properties: objects whose schema does not speak of further properties have none
    whitespace_pattern: regex of the white space that JSON may have between its tokens
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        name = "structured_outputs"
        given = [constraint for constraint in CONSTRAINTS if getattr(self, constraint) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise InvalidRequestError(f"{name} must have exactly one of {', '.join(CONSTRAINTS)}, got {found}", name)
        if self.json_object is not None and self.json_object is not True:
            raise checks.wrong(f"{name}.json_object", "True or left out", self.json_object)
        is_one_text = isinstance(self.choice, str)  # a sequence of texts too, but of one character each
        if is_one_text or (self.choice is not None and not checks.as_texts(f"{name}.choice", self.choice)):
            raise checks.wrong(f"{name}.choice", "a non-empty list of strings", self.choice)
        for option in ("disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, option) is not None:
                checks.as_bool(f"{name}.{option}", getattr(self, option))
        self._verify_texts(name)
        for constraint in ("json", "structural_tag"):
            if getattr(self, constraint) is not None:
                _verify_json(f"{name}.{constraint}", getattr(self, constraint))

    def _verify_texts(self, name: str) -> None:
        for field in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, str) or not checks.is_valid_unicode(value):
                raise checks.wrong(f"{name}.{field}", "a string of valid Unicode", value)
            limit = MAX_SOURCE_BYTES if field == "grammar" else MAX_REGEX_BYTES
            if len(value.encode()) > limit:
                raise checks.wrong(f"{name}.{field}", f"of at most {limit} bytes", value)
            if "\0" in value:
                raise checks.wrong(f"{name}.{field}", "without NUL characters", value)
        if self.choice is not None and sum(map(len, self.choice)) > MAX_SOURCE_BYTES:
            raise checks.wrong(f"{name}.choice", f"of at most {MAX_SOURCE_BYTES} characters together", self.choice)

    @property
    def constraint(self) -> str:
        """Return which of CONSTRAINTS is given."""
        return next(constraint for constraint in CONSTRAINTS if getattr(self, constraint) is not None)


def json_text(name: str, value: object) -> str:
    """Return JSON that came as text or decoded, as text; raises InvalidRequestError that names the parameter."""
    if isinstance(value, str):
        return value
    try:
        return json_module.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise checks.wrong(name, f"plain JSON data ({error})", value) from None


def _verify_json(name: str, value: object) -> None:
    if not isinstance(value, (str, dict)):
        hint = " (of a Pydantic model: model_json_schema())" if hasattr(value, "model_json_schema") else ""
        raise checks.wrong(name, f"JSON as text or dict{hint}", value)
    text = json_text(name, value)
    if not checks.is_valid_unicode(text):
        raise checks.wrong(name, "made of valid Unicode, without lone surrogates", value)
    if len(text.encode()) > MAX_SOURCE_BYTES:
        raise checks.wrong(name, f"of at most {MAX_SOURCE_BYTES} bytes", value)
    decoded: object = value
    if isinstance(value, str):
        try:
            decoded = json_module.loads(value, object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            raise checks.wrong(name, f"valid JSON ({error})", value) from None
    if _depth_exceeds(decoded, MAX_JSON_NESTING):
        raise checks.wrong(name, f"nested at most {MAX_JSON_NESTING} deep", "something deeper")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raises ValueError for a name that comes twice, as readers differ on which one counts."""
    decoded = dict(pairs)
    if len(decoded) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in decoded if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return decoded


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
