"""The keywords that speak of a value by itself: type, bounds, lengths, patterns, properties, items."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

from octavo.structured.json_schema.dialects import (
    DRAFT_6,
    DRAFT_2019,
    DRAFT_2020,
    IN_PLACE_KEYWORDS,
    OWN_KEYWORDS,
)
from octavo.structured.json_schema.document import Document, Node
from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.intersect import value_by_rules
from octavo.structured.json_schema.numbers import number_shape_is_empty
from octavo.structured.json_schema.regex_search import parse_pattern
from octavo.structured.json_schema.regex_syntax import PatternError
from octavo.structured.json_schema.shapes import (
    ANY,
    BOTH_BOOLEANS,
    NEVER,
    ArrayShape,
    Conjunction,
    ConstTerm,
    Contains,
    Evaluated,
    NameRules,
    NumberShape,
    ObjectShape,
    Shapes,
    StringShape,
    both,
)
from octavo.structured.json_schema.strings import FORMATS, string_shape_is_empty
from octavo.structured.json_schema.values import JsonValue, Number, is_count, is_number, value_key

TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


def is_trivial(node: Node) -> bool:
    """Tell whether a schema object holds nothing but annotations."""
    return isinstance(node.schema, dict) and not any(
        keyword in OWN_KEYWORDS or keyword in IN_PLACE_KEYWORDS for keyword in node.schema
    )


def shapes_of_values(values: list[JsonValue], pointer: str) -> Shapes:
    """Return the shapes of exactly these values."""
    unique = {value_key(value): value for value in values}.values()
    numbers = tuple(value for value in unique if is_number(value))
    strings = tuple(value for value in unique if isinstance(value, str))
    return Shapes(
        null=any(value is None for value in unique),
        booleans=frozenset(value for value in unique if isinstance(value, bool)),
        numbers=(NumberShape(values=numbers, pointer=pointer),) if numbers else (),  # type: ignore[arg-type]
        strings=(StringShape(values=strings, pointer=pointer),) if strings else (),
        arrays=tuple(array_of_value(value, pointer) for value in unique if isinstance(value, list)),
        objects=tuple(object_of_value(value, pointer) for value in unique if isinstance(value, dict)),
    )


def shapes_of_value(value: JsonValue, pointer: str) -> Shapes:
    return shapes_of_values([value], pointer)


def array_of_value(value: list[JsonValue], pointer: str) -> ArrayShape:
    items: tuple[Conjunction, ...] = tuple((ConstTerm(value_key(item), item),) for item in value)
    return ArrayShape(items, NEVER, len(items), len(items), pointer=pointer)


def object_of_value(value: dict[str, JsonValue], pointer: str) -> ObjectShape:
    properties: tuple[tuple[str, Conjunction], ...] = tuple(
        (name, (ConstTerm(value_key(item), item),)) for name, item in value.items()
    )
    return ObjectShape(properties, (NameRules((), NEVER),), tuple(value), pointer=pointer)


class KeywordReader:
    """Reads the keywords of one schema object."""

    def __init__(self, document: Document, node: Node, conjunction_of: Callable[[int], Conjunction]) -> None:
        assert isinstance(node.schema, dict)
        self.document = document
        self.node = node
        self.schema = node.schema
        self.conjunction_of = conjunction_of

    def refuse(self, reason: str, keyword: str) -> NoReturn:
        raise SchemaRefusedError(reason, keyword, self.node.pointer)

    def own_shapes(self) -> Shapes:
        """Return the shapes that type and the keywords for single types leave."""
        types = self.types()
        numbers = self.number_shape(integer="number" not in types) if types & {"number", "integer"} else None
        strings = self.string_shape() if "string" in types else None
        return Shapes(
            null="null" in types,
            booleans=BOTH_BOOLEANS if "boolean" in types else frozenset(),
            numbers=() if numbers is None or number_shape_is_empty(numbers) else (numbers,),
            strings=() if strings is None or string_shape_is_empty(strings) else (strings,),
            arrays=self.array_shapes() if "array" in types else (),
            objects=self.object_shapes() if "object" in types else (),
        )

    def types(self) -> frozenset[str]:
        value = self.schema.get("type")
        if "type" not in self.schema:
            return TYPES
        names = value if isinstance(value, list) else [value]
        unknown = [name for name in names if not isinstance(name, str) or name not in TYPES]
        if unknown or not names:
            self.refuse(f"the types are {', '.join(sorted(TYPES))}; got {str(value)[:80]!r}", "type")
        return frozenset(str(name) for name in names)

    def number(self, keyword: str) -> Number | None:
        value = self.schema.get(keyword)
        if keyword not in self.schema:
            return None
        if not is_number(value):
            self.refuse(f"its value must be a number, got {str(value)[:80]!r}", keyword)
        return value  # type: ignore[return-value]

    def count(self, keyword: str) -> int | None:
        value = self.schema.get(keyword)
        if keyword not in self.schema:
            return None
        if not is_count(value):
            self.refuse(f"its value must be a whole number from 0 on, got {str(value)[:80]!r}", keyword)
        return int(value)  # type: ignore[arg-type]

    def number_shape(self, *, integer: bool) -> NumberShape:
        low, low_open = self.bound("minimum", "exclusiveMinimum", is_low=True)
        high, high_open = self.bound("maximum", "exclusiveMaximum", is_low=False)
        divisor = self.number("multipleOf")
        if divisor is not None and (divisor <= 0 or not math.isfinite(divisor)):
            self.refuse("its value must be above 0", "multipleOf")
        multiples_of = () if divisor is None else (divisor,)
        if (low, high, integer, multiples_of) == (None, None, False, ()):
            return NumberShape()
        return NumberShape(low, low_open, high, high_open, integer, multiples_of, pointer=self.node.pointer)

    def bound(self, keyword: str, exclusive: str, *, is_low: bool) -> tuple[Number | None, bool]:
        """Return a bound and whether it is excluded; drafts to 4 have a flag for that, later ones a number."""
        inclusive_bound = self.number(keyword)
        if isinstance(self.schema.get(exclusive), bool):
            return inclusive_bound, inclusive_bound is not None and self.schema[exclusive] is True
        exclusive_bound = self.number(exclusive)
        if exclusive_bound is None:
            return inclusive_bound, False
        if inclusive_bound is None or inclusive_bound == exclusive_bound:
            return exclusive_bound, True
        if (inclusive_bound > exclusive_bound) == is_low:
            return inclusive_bound, False
        return exclusive_bound, True

    def string_shape(self) -> StringShape:
        pattern = self.schema.get("pattern")
        if "pattern" in self.schema:
            if not isinstance(pattern, str):
                self.refuse("its value must be a string", "pattern")
            self.check_pattern(pattern, "pattern")
        name = self.schema.get("format")
        shape = StringShape(
            self.count("minLength") or 0,
            self.count("maxLength"),
            () if not isinstance(pattern, str) else (pattern,),
            format=name if isinstance(name, str) and name in FORMATS else None,
            pointer=self.node.pointer,
        )
        return StringShape() if shape == StringShape() else shape

    def check_pattern(self, pattern: str, keyword: str) -> None:
        try:
            parse_pattern(pattern)
        except PatternError as error:
            self.refuse(f"{error}, in {pattern[:200]!r}", keyword)

    def array_shapes(self) -> tuple[ArrayShape, ...]:
        low = self.count("minItems") or 0
        high = self.count("maxItems")
        if high is not None and low > high:
            return ()
        prefix, items, num_evaluated = self.items()
        shape = ArrayShape(
            prefix,
            items,
            low,
            high,
            self.flag("uniqueItems"),
            self.contains(),
            num_evaluated,
            pointer=self.node.pointer,
        )
        return (ArrayShape() if shape == ArrayShape() else shape,)

    def items(self) -> tuple[tuple[Conjunction, ...], Conjunction, int | None]:
        """Return what the first items must be, what the others must be, and how many are evaluated (None: all)."""
        value = self.schema.get("items")
        as_list = "items"
        rest = "additionalItems"
        if self.node.dialect >= DRAFT_2020 and not isinstance(value, list):
            as_list, rest = "prefixItems", "items"
        elif not isinstance(value, list):
            if "items" not in self.schema:
                return (), ANY, 0
            return (), self.child_terms("items"), None
        first = self.schema.get(as_list, [])
        if not isinstance(first, list):
            self.refuse("its value must be a list of schemas", as_list)
        prefix = tuple(
            self.conjunction_of(self.document.child(self.node, as_list, index)) for index in range(len(first))
        )
        if rest in self.schema:
            return prefix, self.child_terms(rest), None
        return prefix, ANY, len(prefix)

    def child_terms(self, *steps: str) -> Conjunction:
        return self.conjunction_of(self.document.child(self.node, *steps))

    def flag(self, keyword: str) -> bool:
        value = self.schema.get(keyword, False)
        if not isinstance(value, bool):
            self.refuse("its value must be true or false", keyword)
        return value

    def contains(self) -> tuple[Contains, ...]:
        if "contains" not in self.schema or self.node.dialect < DRAFT_6:
            return ()
        low, high = 1, None
        if self.node.dialect >= DRAFT_2019:
            least = self.count("minContains")
            low, high = (1 if least is None else least), self.count("maxContains")
        if low == 0 and high is None:
            return ()
        return (Contains(self.child_terms("contains"), low, high),)

    def object_shapes(self) -> tuple[ObjectShape, ...]:
        rules, evaluated = self.name_rules()
        properties: dict[str, Conjunction] = {}
        by_pattern = NameRules(rules[0].patterns, ANY) if rules else NameRules((), ANY)
        for name in self.mapping("properties"):
            terms = self.child_terms("properties", name)
            properties[name] = both(terms, value_by_rules((by_pattern,), name)) if by_pattern.patterns else terms
        required = self.required()
        for name in required:
            if name not in properties:
                properties[name] = value_by_rules(rules, name)
        names: tuple[Conjunction, ...] = ()
        if "propertyNames" in self.schema and self.node.dialect >= DRAFT_6:
            terms = self.child_terms("propertyNames")
            names = () if terms == ANY else (terms,)
        shape = ObjectShape(
            tuple(properties.items()),
            rules,
            required,
            self.count("minProperties") or 0,
            self.count("maxProperties"),
            names,
            (),
            evaluated,
            pointer=self.node.pointer,
        )
        if shape.high is not None and max(shape.low, len(required)) > shape.high:
            return ()
        return (ObjectShape() if shape == ObjectShape() else shape,)

    def name_rules(self) -> tuple[tuple[NameRules, ...], Evaluated]:
        patterns: list[tuple[str, Conjunction]] = []
        for pattern in self.mapping("patternProperties"):
            self.check_pattern(pattern, "patternProperties")
            patterns.append((pattern, self.child_terms("patternProperties", pattern)))
        everything = "additionalProperties" in self.schema
        rest = self.child_terms("additionalProperties") if everything else ANY
        evaluated = Evaluated(
            frozenset(self.mapping("properties")), frozenset(pattern for pattern, _ in patterns), everything
        )
        rule = NameRules(tuple(patterns), rest)
        trivial = rest == ANY and all(terms == ANY for _, terms in patterns)
        return (() if trivial else (rule,)), evaluated

    def mapping(self, keyword: str) -> dict[str, JsonValue]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            self.refuse("its value must be an object", keyword)
        return value

    def required(self) -> tuple[str, ...]:
        value = self.schema.get("required", [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.refuse("its value must be a list of property names", "required")
        return tuple(dict.fromkeys(str(name) for name in value))
