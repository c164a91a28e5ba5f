"""The complement of shapes: what `not`, `oneOf`, `if` and dependencies need.

Each type's complement is the intersection of its shapes' complements, each shape's complement a union of shapes that
break one of its demands. A demand whose breach no shape describes becomes an Opaque, which only matters if something of
it is left in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.intersect import intersect_shapes
from octavo.structured.json_schema.limits import Budget
from octavo.structured.json_schema.shapes import (
    ANY,
    ANYTHING,
    BOTH_BOOLEANS,
    NEVER,
    ArrayShape,
    Conjunction,
    ConstTerm,
    Contains,
    Extra,
    NumberShape,
    ObjectShape,
    Opaque,
    SchemaTerm,
    Shapes,
    StringShape,
)


def negate_shapes(shapes: Shapes, budget: Budget, keyword: str, pointer: str) -> Shapes:
    """Return the shapes of all values that are in none of `shapes`. Raises SchemaRefusedError."""
    if shapes.tightened:
        raise SchemaRefusedError("its complement is not known exactly", keyword, pointer)
    result = replace(ANYTHING, null=not shapes.null, booleans=BOTH_BOOLEANS - shapes.booleans)
    breaches = [
        *(replace(ANYTHING, numbers=tuple(outside_number(shape, keyword, pointer))) for shape in shapes.numbers),
        *(replace(ANYTHING, strings=tuple(outside_string(shape, keyword, pointer))) for shape in shapes.strings),
        *(replace(ANYTHING, arrays=tuple(outside_array(shape, keyword, pointer))) for shape in shapes.arrays),
        *(replace(ANYTHING, objects=tuple(outside_object(shape, keyword, pointer))) for shape in shapes.objects),
    ]
    for breach in breaches:
        result = intersect_shapes(result, breach, budget, keyword, pointer)
    return result


def outside_number(shape: NumberShape | Opaque, keyword: str, pointer: str) -> Iterable[NumberShape | Opaque]:
    if isinstance(shape, Opaque):
        yield shape
        return
    if shape.values is not None:
        points = sorted(set(shape.values))
        yield NumberShape(high=points[0], high_open=True)
        for low, high in pairwise(points):
            yield NumberShape(low=low, low_open=True, high=high, high_open=True)
        yield NumberShape(low=points[-1], low_open=True)
        return
    if shape.low is not None:
        yield NumberShape(high=shape.low, high_open=not shape.low_open)
    if shape.high is not None:
        yield NumberShape(low=shape.high, low_open=not shape.high_open)
    if shape.integer:
        yield Opaque("numbers that are no integers cannot be enforced", keyword, pointer)
    if shape.multiples_of:
        yield Opaque("numbers that are no multiple cannot be enforced", keyword, pointer)


def outside_string(shape: StringShape | Opaque, keyword: str, pointer: str) -> Iterable[StringShape | Opaque]:
    if isinstance(shape, Opaque):
        yield shape
        return
    if shape.values is not None:
        yield StringShape(excluded=frozenset(shape.values), pointer=pointer)
        return
    if shape.low:
        yield StringShape(high=shape.low - 1)
    if shape.high is not None:
        yield StringShape(low=shape.high + 1)
    for pattern in shape.patterns:
        yield StringShape(not_patterns=(pattern,), pointer=pointer)
    for pattern in shape.not_patterns:
        yield StringShape(patterns=(pattern,), pointer=pointer)
    if shape.excluded:
        yield StringShape(values=tuple(sorted(shape.excluded)), pointer=pointer)


def broken(terms: Conjunction) -> list[Conjunction]:
    """Return the alternatives of a conjunction's complement."""
    alternatives: list[Conjunction] = []
    for term in terms:
        if isinstance(term, (SchemaTerm, ConstTerm)):
            alternatives.append((replace(term, negated=not term.negated),))
        else:
            return [ANY]
    return alternatives


def outside_array(shape: ArrayShape | Opaque, keyword: str, pointer: str) -> Iterable[ArrayShape | Opaque]:
    if isinstance(shape, Opaque):
        yield shape
        return
    if shape.low:
        yield ArrayShape(high=shape.low - 1)
    if shape.high is not None:
        yield ArrayShape(low=shape.high + 1)
    for index, terms in enumerate(shape.prefix):
        for alternative in broken(terms):
            yield ArrayShape(prefix=(*((ANY,) * index), alternative), low=index + 1)
    if shape.items == NEVER:
        yield ArrayShape(low=len(shape.prefix) + 1)
    elif shape.items != ANY and not shape.prefix:
        for alternative in broken(shape.items):
            yield ArrayShape(low=1, contains=(Contains(alternative, 1, None),), pointer=pointer)
    elif shape.items != ANY:
        yield Opaque("an item behind the first ones that breaks a rule cannot be enforced", keyword, pointer)
    if shape.unique:
        yield Opaque("arrays with equal items cannot be enforced", keyword, pointer)
    for contains in shape.contains:
        if contains.high is None and contains.low == 1 and len(contains.terms) == 1:
            yield ArrayShape(items=broken(contains.terms)[0])
        else:
            yield Opaque("the opposite of contains cannot be enforced", keyword, pointer)


def outside_object(shape: ObjectShape | Opaque, keyword: str, pointer: str) -> Iterable[ObjectShape | Opaque]:
    if isinstance(shape, Opaque):
        yield shape
        return
    for name in shape.required:
        yield ObjectShape(properties=((name, NEVER),))
    for name, terms in shape.properties:
        for alternative in broken(terms):
            yield ObjectShape(properties=((name, alternative),), required=(name,))
    if shape.low > len(shape.required):
        yield ObjectShape(high=shape.low - 1, pointer=pointer)
    if shape.high is not None:
        yield ObjectShape(low=shape.high + 1, pointer=pointer)
    known = frozenset(name for name, _ in shape.properties)
    for rule in shape.rules:
        if any(value != ANY for _, value in rule.patterns) or (rule.patterns and rule.rest != ANY):
            yield Opaque("a property by pattern that breaks a rule cannot be enforced", keyword, pointer)
        for alternative in broken(rule.rest):
            yield ObjectShape(extras=(Extra(known, alternative),), pointer=pointer)
    if shape.names or shape.extras:
        yield Opaque("the opposite of a rule on all property names cannot be enforced", keyword, pointer)
