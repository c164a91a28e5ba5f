"""What the backend is told: alternatives in the few keywords that it enforces exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from octavo.structured.json_schema.shapes import ANY, Conjunction
from octavo.structured.json_schema.values import JsonValue


@dataclass(frozen=True, slots=True)
class ScalarPlan:
    """A schema without schemas inside."""

    schema: JsonValue


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """`unique`: the items must differ, which no grammar can see to: see `places`."""

    prefix: tuple[Conjunction, ...] = ()
    items: Conjunction = ANY
    low: int = 0
    high: int | None = None
    unique: bool = False

    def at(self, index: int) -> Conjunction:
        return self.prefix[index] if index < len(self.prefix) else self.items

    def needed(self) -> list[Conjunction]:
        """Return what must have a value for the array to have one."""
        return [self.at(index) for index in range(min(self.low, len(self.prefix) + 1))]

    def inside(self) -> list[Conjunction]:
        return [*self.prefix, self.items]


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """`low` and `high` only where every property with a name is required: the backend counts nothing else."""

    properties: tuple[tuple[str, Conjunction], ...] = ()
    required: tuple[str, ...] = ()
    patterns: tuple[tuple[str, Conjunction], ...] = ()
    rest: Conjunction = ANY
    low: int = 0
    high: int | None = None

    def needed(self) -> list[Conjunction]:
        """Return what must have a value for the object to have one."""
        values = dict(self.properties)
        return [values[name] for name in self.required]

    def inside(self) -> list[Conjunction]:
        return [*(terms for _, terms in self.properties), *(terms for _, terms in self.patterns), self.rest]


Plan: TypeAlias = "ScalarPlan | ArrayPlan | ObjectPlan"
