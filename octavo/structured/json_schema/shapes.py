"""The normal form of a schema: for each JSON type, a union of shapes that know no allOf, anyOf, oneOf, not or if.

A shape describes values of one type. Where it speaks about values within (properties, items), it holds a conjunction of
terms, which are looked into only when needed: this is what makes recursive schemas finite.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from octavo.structured.json_schema.values import JsonValue, Number


@dataclass(frozen=True, slots=True)
class SchemaTerm:
    """The value must (or, negated, must not) satisfy the schema with this number in the document."""

    number: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class ConstTerm:
    """The value must (or, negated, must not) equal this one."""

    key: Hashable
    value: JsonValue = field(compare=False)
    negated: bool = False


@dataclass(frozen=True, slots=True)
class NeverTerm:
    """No value satisfies this."""


Term: TypeAlias = "SchemaTerm | ConstTerm | NeverTerm"
Conjunction: TypeAlias = "tuple[Term, ...]"  # all must hold; without terms, any value does
ANY: Conjunction = ()
NEVER: Conjunction = (NeverTerm(),)


def both(first: Conjunction, second: Conjunction) -> Conjunction:
    """Return the conjunction of two, in order and without repetition."""
    if not second or first == second:
        return first
    if first == NEVER or second == NEVER:
        return NEVER
    return tuple(dict.fromkeys((*first, *second)))


@dataclass(frozen=True, slots=True)
class Opaque:
    """Values that cannot be described here; harmless as long as nothing of it is left in the end."""

    reason: str
    keyword: str
    pointer: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class NumberShape:
    low: Number | None = None
    low_open: bool = False
    high: Number | None = None
    high_open: bool = False
    integer: bool = False
    multiples_of: tuple[Number, ...] = ()
    values: tuple[Number, ...] | None = None
    pointer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StringShape:
    low: int = 0
    high: int | None = None
    patterns: tuple[str, ...] = ()
    not_patterns: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    format: str | None = None
    pointer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Contains:
    terms: Conjunction
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class ArrayShape:
    prefix: tuple[Conjunction, ...] = ()
    items: Conjunction = ANY
    low: int = 0
    high: int | None = None
    unique: bool = False
    contains: tuple[Contains, ...] = ()
    num_evaluated: int | None = 0  # items that a keyword has looked at; None: all
    pointer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NameRules:
    """What one source says about properties without a name of their own: by pattern, else `rest`."""

    patterns: tuple[tuple[str, Conjunction], ...]
    rest: Conjunction


@dataclass(frozen=True, slots=True)
class Extra:
    """There must be a property that is none of `names` and whose value satisfies `terms`."""

    names: frozenset[str]
    terms: Conjunction


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Properties that a keyword has looked at, for unevaluatedProperties."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """`properties` is total for its names: what patterns and additionalProperties say about them is in there."""

    properties: tuple[tuple[str, Conjunction], ...] = ()
    rules: tuple[NameRules, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: tuple[Conjunction, ...] = ()
    extras: tuple[Extra, ...] = ()
    evaluated: Evaluated = Evaluated()
    pointer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Shapes:
    """A union of shapes for each type. `tightened`: narrower than the schema, so it must not be negated."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[NumberShape | Opaque, ...] = ()
    strings: tuple[StringShape | Opaque, ...] = ()
    arrays: tuple[ArrayShape | Opaque, ...] = ()
    objects: tuple[ObjectShape | Opaque, ...] = ()
    tightened: bool = False

    @property
    def is_never(self) -> bool:
        return not (self.null or self.booleans or self.numbers or self.strings or self.arrays or self.objects)


BOTH_BOOLEANS = frozenset((True, False))
ANYTHING = Shapes(True, BOTH_BOOLEANS, (NumberShape(),), (StringShape(),), (ArrayShape(),), (ObjectShape(),))
NOTHING = Shapes()
