"""Array shapes to plans: contains becomes alternatives of plain arrays, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.expand import Expander
from octavo.structured.json_schema.negate import broken
from octavo.structured.json_schema.plans import ArrayPlan
from octavo.structured.json_schema.shapes import (
    ANY,
    NEVER,
    ArrayShape,
    Conjunction,
    Contains,
    NumberShape,
    StringShape,
    both,
)
from octavo.structured.json_schema.values import JsonValue, value_key

MAX_ITEMS = 1_000_000
MAX_CONTAINED_PLACES = 6  # where a contained item may stand when the array has no bound


def lower_array(shape: ArrayShape, expander: Expander) -> list[ArrayPlan]:
    """Return plans whose union is the shape. Raises SchemaRefusedError."""
    plans = [plan_of(cut(simple), expander) for simple in without_contains(cut(shape), expander)]
    return [plan for plan in plans if plan.high is None or plan.low <= plan.high]


def cut(shape: ArrayShape) -> ArrayShape:
    """Bring the upper bound down to where no item is possible any more, and the first items down to the bound."""
    high = shape.high
    if shape.items == NEVER:
        high = len(shape.prefix) if high is None else min(high, len(shape.prefix))
    if NEVER in shape.prefix:
        high = shape.prefix.index(NEVER) if high is None else min(high, shape.prefix.index(NEVER))
    if high is not None and high >= MAX_ITEMS:
        high = MAX_ITEMS
    if shape.low > MAX_ITEMS:
        raise SchemaRefusedError(f"no array of {shape.low} items can be generated", "minItems", shape.pointer)
    prefix = shape.prefix if high is None else shape.prefix[:high]
    return replace(shape, prefix=prefix, high=high)


def at(shape: ArrayShape, index: int) -> Conjunction:
    return shape.prefix[index] if index < len(shape.prefix) else shape.items


def without_contains(shape: ArrayShape, expander: Expander) -> list[ArrayShape]:
    shapes = [replace(shape, contains=())]
    for contains in shape.contains:
        shapes = [simple for one in shapes for simple in place_contained(cut(one), contains)]
        expander.budget.spend(len(shapes), "contains", shape.pointer)
    return shapes


def place_contained(shape: ArrayShape, contains: Contains) -> Iterator[ArrayShape]:
    """Yield the shapes with the contained items at fixed places.

    Without an upper bound on the number of items they stand among the first few: narrower than the schema, never wider.
    """
    if all(set(contains.terms) <= set(terms) for terms in (*shape.prefix, shape.items)):
        high = shape.high if contains.high is None else min(contains.high, shape.high or contains.high)
        yield replace(shape, low=max(shape.low, contains.low), high=high)
        return
    others = ANY
    if contains.high is not None:
        alternatives = broken(contains.terms)
        if len(alternatives) != 1:
            raise SchemaRefusedError(
                "an upper bound on contained items cannot be enforced here", "maxContains", shape.pointer
            )
        others = alternatives[0]
    num_places = MAX_CONTAINED_PLACES if shape.high is None else min(shape.high, MAX_CONTAINED_PLACES)
    most = contains.low if contains.high is None else min(contains.high, num_places)
    if contains.low > num_places and (shape.high is None or contains.low <= shape.high):
        raise SchemaRefusedError(
            f"more than {num_places} contained items cannot be placed", "minContains", shape.pointer
        )
    for count in range(contains.low, most + 1):
        for places in combinations(range(num_places), count):
            length = max(len(shape.prefix), max(places, default=-1) + 1)
            prefix = tuple(
                both(at(shape, index), contains.terms if index in places else others) for index in range(length)
            )
            low = max(shape.low, max(places, default=-1) + 1)
            yield replace(shape, prefix=prefix, items=both(shape.items, others), low=low)


def plan_of(shape: ArrayShape, expander: Expander) -> ArrayPlan:
    """Return the plan; where distinct items have few values, it has no more items than these."""
    high = shape.high
    unique = shape.unique and (high is None or high > 1)
    values = finite_values(shape.items, expander) if unique and not shape.prefix else None
    if values is not None:
        high = len(values) if high is None else min(high, len(values))
    return ArrayPlan(shape.prefix, shape.items, shape.low, high, unique)


def finite_values(terms: Conjunction, expander: Expander) -> list[JsonValue] | None:
    """Return all values of a conjunction where they are few scalars, else None."""
    shapes = expander.expand_terms(terms)
    if shapes.arrays or shapes.objects:
        return None
    values: list[JsonValue] = [None] if shapes.null else []
    values += sorted(shapes.booleans)
    for shape in (*shapes.numbers, *shapes.strings):
        if not isinstance(shape, (NumberShape, StringShape)) or shape.values is None:
            return None
        values += shape.values
    return list({value_key(value): value for value in values}.values())
