"""Intersection and union of shapes, and the cheap tests that leave out what is empty."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.limits import MAX_ALTERNATIVES, Budget
from octavo.structured.json_schema.numbers import number_in_shape, number_shape_is_empty
from octavo.structured.json_schema.shapes import (
    ANY,
    NEVER,
    ArrayShape,
    Conjunction,
    Evaluated,
    NameRules,
    NumberShape,
    ObjectShape,
    Opaque,
    Shapes,
    StringShape,
    both,
)
from octavo.structured.json_schema.strings import pattern_matches, string_in_shape, string_shape_is_empty
from octavo.structured.json_schema.values import Number

Shape = TypeVar("Shape", NumberShape, StringShape, ArrayShape, ObjectShape)
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Place:
    """Whom to charge for the work, and whom to blame when it is too much."""

    budget: Budget
    keyword: str
    pointer: str


def weight(shape: Shape | Opaque) -> int:
    """Return about how much an intersection with a shape costs."""
    if isinstance(shape, ObjectShape):
        return 1 + len(shape.properties)
    if isinstance(shape, StringShape):
        return 1 + 100 * (len(shape.patterns) + len(shape.not_patterns))
    return 1 + len(shape.prefix) if isinstance(shape, ArrayShape) else 1


def product(
    lefts: tuple[Shape | Opaque, ...],
    rights: tuple[Shape | Opaque, ...],
    meet: Callable[[Shape, Shape], Shape | None],
    place: Place,
) -> tuple[Shape | Opaque, ...]:
    """Return the intersections of all pairs that are not surely empty."""
    work = sum(map(weight, lefts)) * len(rights) + sum(map(weight, rights)) * len(lefts)
    place.budget.spend(work, place.keyword, place.pointer)
    found: dict[Shape | Opaque, None] = {}
    for left in lefts:
        for right in rights:
            if isinstance(left, Opaque):
                found[left] = None
            elif isinstance(right, Opaque):
                found[right] = None
            elif (met := meet(left, right)) is not None:
                found[met] = None
    if len(found) > MAX_ALTERNATIVES:
        raise SchemaRefusedError(
            f"it comes to more than {MAX_ALTERNATIVES} alternatives; simplify allOf/anyOf/oneOf",
            place.keyword,
            place.pointer,
        )
    return tuple(found)


def intersect_shapes(first: Shapes, second: Shapes, budget: Budget, keyword: str, pointer: str) -> Shapes:
    """Return the shapes of the values that are in both."""

    place = Place(budget, keyword, pointer)
    return Shapes(
        null=first.null and second.null,
        booleans=first.booleans & second.booleans,
        numbers=product(first.numbers, second.numbers, intersect_numbers, place),
        strings=product(first.strings, second.strings, intersect_strings, place),
        arrays=product(first.arrays, second.arrays, intersect_arrays, place),
        objects=product(first.objects, second.objects, intersect_objects, place),
        tightened=first.tightened or second.tightened,
    )


def unite_shapes(first: Shapes, second: Shapes, budget: Budget, keyword: str, pointer: str) -> Shapes:
    """Return the shapes of the values that are in at least one."""

    def union(lefts: tuple[Item, ...], rights: tuple[Item, ...]) -> tuple[Item, ...]:
        budget.spend(len(rights), keyword, pointer)
        return tuple(dict.fromkeys((*lefts, *rights)))

    united = Shapes(
        null=first.null or second.null,
        booleans=first.booleans | second.booleans,
        numbers=unite_numbers(union(first.numbers, second.numbers)),
        strings=unite_strings(union(first.strings, second.strings)),
        arrays=union(first.arrays, second.arrays),
        objects=union(first.objects, second.objects),
        tightened=first.tightened or second.tightened,
    )
    if max(len(united.numbers), len(united.strings), len(united.arrays), len(united.objects)) > 4 * MAX_ALTERNATIVES:
        raise SchemaRefusedError(f"it has more than {4 * MAX_ALTERNATIVES} alternatives", keyword, pointer)
    return united


def unite_numbers(shapes: tuple[NumberShape | Opaque, ...]) -> tuple[NumberShape | Opaque, ...]:
    return (NumberShape(),) if NumberShape() in shapes else shapes


def unite_strings(shapes: tuple[StringShape | Opaque, ...]) -> tuple[StringShape | Opaque, ...]:
    """Join the shapes that are plain lists of values into one: enumerations are often spread over anyOf."""
    if StringShape() in shapes:
        return (StringShape(),)
    listed = [shape for shape in shapes if isinstance(shape, StringShape) and shape.values is not None]
    if len(listed) < 2:
        return shapes
    values = tuple(dict.fromkeys(value for shape in listed for value in shape.values or ()))
    others = tuple(shape for shape in shapes if shape not in listed)
    return (*others, StringShape(values=values, pointer=listed[0].pointer))


def intersect_numbers(first: NumberShape, second: NumberShape) -> NumberShape | None:
    for one, other in ((first, second), (second, first)):
        if one.values is not None:
            kept = tuple(value for value in one.values if number_in_shape(value, other))
            return NumberShape(values=kept, pointer=one.pointer) if kept else None
    low, low_open = tighter(first.low, first.low_open, second.low, second.low_open, is_low=True)
    high, high_open = tighter(first.high, first.high_open, second.high, second.high_open, is_low=False)
    shape = NumberShape(
        low,
        low_open,
        high,
        high_open,
        first.integer or second.integer,
        tuple(dict.fromkeys((*first.multiples_of, *second.multiples_of))),
        pointer=first.pointer or second.pointer,
    )
    return None if number_shape_is_empty(shape) else shape


def tighter(
    first: Number | None, first_open: bool, second: Number | None, second_open: bool, *, is_low: bool
) -> tuple[Number | None, bool]:
    """Return the stricter of two bounds, and whether the bound itself is outside."""
    if first is None or second is None:
        return (second, second_open) if first is None else (first, first_open)
    if first == second:
        return first, first_open or second_open
    return (first, first_open) if (first > second) == is_low else (second, second_open)


def intersect_strings(first: StringShape, second: StringShape) -> StringShape | None:
    for one, other in ((first, second), (second, first)):
        if one.values is not None:
            kept = tuple(value for value in one.values if string_in_shape(value, other))
            return StringShape(values=kept, pointer=one.pointer) if kept else None
    shape = StringShape(
        max(first.low, second.low),
        least(first.high, second.high),
        tuple(dict.fromkeys((*first.patterns, *second.patterns))),
        tuple(dict.fromkeys((*first.not_patterns, *second.not_patterns))),
        None,
        first.excluded | second.excluded,
        first.format or second.format,
        first.pointer or second.pointer,
    )
    return None if string_shape_is_empty(shape) else shape


def least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)


def intersect_arrays(first: ArrayShape, second: ArrayShape) -> ArrayShape | None:
    def at(shape: ArrayShape, index: int) -> Conjunction:
        return shape.prefix[index] if index < len(shape.prefix) else shape.items

    evaluated = (
        None
        if first.num_evaluated is None or second.num_evaluated is None
        else max(first.num_evaluated, second.num_evaluated)
    )
    shape = ArrayShape(
        tuple(both(at(first, index), at(second, index)) for index in range(max(len(first.prefix), len(second.prefix)))),
        both(first.items, second.items),
        max(first.low, second.low),
        least(first.high, second.high),
        first.unique or second.unique,
        tuple(dict.fromkeys((*first.contains, *second.contains))),
        evaluated,
        first.pointer or second.pointer,
    )
    return None if shape.high is not None and shape.low > shape.high else shape


def intersect_objects(first: ObjectShape, second: ObjectShape) -> ObjectShape | None:
    names = dict.fromkeys(name for shape in (first, second) for name, _ in shape.properties)
    first_known, second_known = dict(first.properties), dict(second.properties)
    shape = ObjectShape(
        tuple(
            (
                name,
                both(
                    first_known[name] if name in first_known else value_by_rules(first.rules, name),
                    second_known[name] if name in second_known else value_by_rules(second.rules, name),
                ),
            )
            for name in names
        ),
        tuple(dict.fromkeys((*first.rules, *second.rules))),
        tuple(dict.fromkeys((*first.required, *second.required))),
        max(first.low, second.low),
        least(first.high, second.high),
        tuple(dict.fromkeys((*first.names, *second.names))),
        tuple(dict.fromkeys((*first.extras, *second.extras))),
        Evaluated(
            first.evaluated.names | second.evaluated.names,
            first.evaluated.patterns | second.evaluated.patterns,
            first.evaluated.everything or second.evaluated.everything,
        ),
        first.pointer or second.pointer,
    )
    if shape.high is not None and max(shape.low, len(shape.required)) > shape.high:
        return None
    impossible = {name for name, terms in shape.properties if terms == NEVER}
    return None if impossible.intersection(shape.required) else shape


def value_by_rules(rules: tuple[NameRules, ...], name: str) -> Conjunction:
    """Return what patterns and `rest` say about the value of a property; both where dialects disagree on a match."""
    terms = ANY
    for rule in rules:
        surely_matched = False
        for pattern, value in rule.patterns:
            possibly, surely = pattern_matches(pattern, name)
            surely_matched |= surely
            if possibly:
                terms = both(terms, value)
        if not surely_matched:
            terms = both(terms, rule.rest)
    return terms
