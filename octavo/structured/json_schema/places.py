"""Where the arrays are whose items must differ: a grammar cannot remember items, a reader beside it can."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from octavo.structured.json_schema.plans import ArrayPlan, ObjectPlan, Plan, ScalarPlan
from octavo.structured.json_schema.shapes import Conjunction, Term

Key: TypeAlias = "frozenset[Term]"


class Place(msgspec.Struct, array_like=True):
    """One sub-schema on the way to an array of distinct items; the numbers are those of other places.

    is_unique: the items of an array here must differ; prefix, items: what its first and its other items may be
    properties, others: what the properties of an object here may be, by name and without one
    """

    is_unique: bool
    prefix: list[list[int]]
    items: list[int]
    properties: dict[str, list[int]]
    others: list[int]


def unique_places(plans: Mapping[Key, Sequence[Plan]], root: Key) -> list[Place]:
    """Return the places on the way from `root`, which is the first, to arrays of distinct items; none without any.

    Where several sub-schemas may describe a place and one demands distinct items, they are distinct: narrower.
    """
    users: dict[Key, list[Key]] = {}
    for key, own in plans.items():
        for terms in (inside for plan in own if not isinstance(plan, ScalarPlan) for inside in plan.inside()):
            users.setdefault(frozenset(terms), []).append(key)
    todo = [key for key, own in plans.items() if any(isinstance(plan, ArrayPlan) and plan.unique for plan in own)]
    numbers = {root: 0} if todo else {}
    while todo:
        key = todo.pop()
        numbers.setdefault(key, len(numbers))
        todo += users.pop(key, ())
    return [_place(plans[key], numbers) for key in numbers]


def _place(plans: Sequence[Plan], numbers: Mapping[Key, int]) -> Place:
    def known(several: Iterable[Conjunction]) -> list[int]:
        return sorted({numbers[key] for key in map(frozenset, several) if key in numbers})

    arrays = [plan for plan in plans if isinstance(plan, ArrayPlan)]
    length = max((len(plan.prefix) for plan in arrays), default=0)
    values: dict[str, list[Conjunction]] = {}
    rests: list[Conjunction] = []
    for plan in plans:
        if isinstance(plan, ObjectPlan):
            rests += [plan.rest, *(terms for _, terms in plan.patterns)]
            for name, terms in plan.properties:
                values.setdefault(name, []).append(terms)
    others = known(rests)
    properties = {name: sorted({*known(terms), *others}) for name, terms in values.items()}
    return Place(
        any(plan.unique for plan in arrays),
        [known(plan.at(index) for plan in arrays) for index in range(length)],
        known(plan.items for plan in arrays),
        {name: below for name, below in properties.items() if below != others},
        others,
    )
