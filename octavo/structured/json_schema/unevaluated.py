"""unevaluatedProperties and unevaluatedItems: rules for what no other keyword has looked at."""

from __future__ import annotations

from dataclasses import replace

from octavo.structured.json_schema.intersect import intersect_arrays, intersect_objects
from octavo.structured.json_schema.limits import Budget
from octavo.structured.json_schema.shapes import (
    ANY,
    ArrayShape,
    Conjunction,
    NameRules,
    ObjectShape,
    Opaque,
    Shapes,
)


def close_unevaluated(shapes: Shapes, keyword: str, terms: Conjunction, budget: Budget, pointer: str) -> Shapes:
    """Apply the keyword to every alternative, which counts what its own branches have looked at.

    Where a value satisfies two branches at once this is narrower than the schema, never wider.
    """
    if keyword == "unevaluatedItems":
        budget.spend(len(shapes.arrays), keyword, pointer)
        arrays = tuple(closed for shape in shapes.arrays if (closed := close_array(shape, terms)) is not None)
        return replace(shapes, arrays=arrays, tightened=shapes.tightened or terms != ANY)
    budget.spend(len(shapes.objects), keyword, pointer)
    objects = tuple(met for shape in shapes.objects if (met := close_object(shape, terms)) is not None)
    return replace(shapes, objects=objects, tightened=shapes.tightened or terms != ANY)


def close_array(shape: ArrayShape | Opaque, terms: Conjunction) -> ArrayShape | Opaque | None:
    if isinstance(shape, Opaque) or shape.num_evaluated is None:
        return shape
    rest = ArrayShape(prefix=(ANY,) * shape.num_evaluated, items=terms, num_evaluated=None)
    return intersect_arrays(shape, rest)


def close_object(shape: ObjectShape | Opaque, terms: Conjunction) -> ObjectShape | Opaque | None:
    if isinstance(shape, Opaque) or shape.evaluated.everything:
        return shape
    seen = shape.evaluated
    rules = NameRules(tuple((pattern, ANY) for pattern in sorted(seen.patterns)), terms)
    rest = ObjectShape(
        tuple((name, ANY) for name in sorted(seen.names)), (rules,), evaluated=replace(seen, everything=True)
    )
    return intersect_objects(shape, rest)
