"""Regular expressions as trees over sets of code points, and the text that llguidance reads for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MAX_PATTERN_LENGTH = 20_000
MAX_GROUP_DEPTH = 100
MAX_REPEAT = 10_000
LAST_CODE_POINT = 0x10FFFF

Intervals: TypeAlias = "tuple[tuple[int, int], ...]"  # sorted, disjoint, not touching, both ends included


class PatternError(ValueError):
    """A pattern cannot be parsed or is outside of what can be enforced."""


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    intervals: Intervals


@dataclass(frozen=True)
class Concat:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alternate:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    item: Node
    low: int
    high: int | None


@dataclass(frozen=True)
class Anchor:
    """The position before the first character, or after the last."""

    at_start: bool


@dataclass(frozen=True)
class Look:
    """What follows must (not) begin with `item`; `behind`: what came before must (not) end with it."""

    item: Node
    negative: bool
    behind: bool = False


@dataclass(frozen=True)
class WordEdge:
    """The position between a word character and another one (or the end of the string); negated: any other position."""

    negated: bool


Node: TypeAlias = "Chars | Concat | Alternate | Repeat | Anchor | Look | WordEdge"

EMPTY = Concat(())
NOTHING = Chars(())  # matches no string


def union_of(*parts: Intervals) -> Intervals:
    """Return the union of interval sets in normal form."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(interval for part in parts for interval in part):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement_of(intervals: Intervals) -> Intervals:
    """Return all code points but these; surrogates are in neither set, since UTF-8 has none."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in union_of(intervals, ((0xD800, 0xDFFF),)):
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST_CODE_POINT:
        gaps.append((start, LAST_CODE_POINT))
    return tuple(gaps)


ANY_INTERVALS = complement_of(())
UNWRITABLE: Intervals = ((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F))
ANY_TEXT = Repeat(Chars(ANY_INTERVALS), 0, None)


def is_nullable(tree: Node) -> bool:
    """Tell whether a tree without anchors matches the empty string."""
    if isinstance(tree, Concat):
        return all(is_nullable(item) for item in tree.items)
    if isinstance(tree, Alternate):
        return any(is_nullable(item) for item in tree.items)
    return isinstance(tree, Repeat) and (tree.low == 0 or is_nullable(tree.item))


def is_plain(tree: Node) -> bool:
    """Tell whether a tree has no anchors and no looks around."""
    if isinstance(tree, Repeat):
        return is_plain(tree.item)
    if isinstance(tree, (Concat, Alternate)):
        return all(is_plain(item) for item in tree.items)
    return isinstance(tree, Chars)


def concat(items: tuple[Node, ...]) -> Node:
    """Return the concatenation, flat."""
    flat: list[Node] = []
    for item in items:
        if item == NOTHING:
            return NOTHING
        for part in item.items if isinstance(item, Concat) else (item,):
            if part == ANY_TEXT and ANY_TEXT in flat:
                last = len(flat) - 1 - flat[::-1].index(ANY_TEXT)
                if all(is_plain(between) and is_nullable(between) for between in flat[last + 1 :]):
                    del flat[last + 1 :]  # anything, perhaps something, anything: is anything
                    continue
            flat.append(part)
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternate(items: tuple[Node, ...]) -> Node:
    """Return the union, flat and without repetition."""
    flat: dict[Node, None] = {}
    for item in items:
        for part in item.items if isinstance(item, Alternate) else (item,):
            if part != NOTHING:
                flat[part] = None
    if not flat:
        return NOTHING
    return next(iter(flat)) if len(flat) == 1 else Alternate(tuple(flat))


def ending(tree: Node, chars: Chars, *, at_start: bool) -> Node:
    """Return the strings of a plain tree that end with one of `chars`; at_start: that begin with one."""
    if isinstance(tree, Chars):
        apart = union_of(complement_of(tree.intervals), complement_of(chars.intervals))
        return Chars(complement_of(apart))
    if isinstance(tree, Alternate):
        return alternate(tuple(ending(item, chars, at_start=at_start) for item in tree.items))
    if isinstance(tree, Repeat):
        if tree.high == 0:
            return NOTHING
        others = Repeat(tree.item, max(tree.low - 1, 0), None if tree.high is None else tree.high - 1)
        edge = ending(tree.item, chars, at_start=at_start)
        return concat((edge, others) if at_start else (others, edge))
    assert isinstance(tree, Concat)
    found: list[Node] = []
    inwards = tree.items if at_start else tree.items[::-1]
    for index, item in enumerate(inwards):
        parts = (ending(item, chars, at_start=at_start), *inwards[index + 1 :])
        found.append(concat(parts if at_start else parts[::-1]))
        if not is_nullable(item):
            break
    return alternate(tuple(found))


def literal(text: str) -> Node:
    return Concat(tuple(Chars(((ord(character), ord(character)),)) for character in text))


def length_between(low: int, high: int | None) -> Node:
    return Repeat(Chars(ANY_INTERVALS), low, high)


def all_but(names: frozenset[str]) -> Node:
    """Return a tree for every string that is none of `names`; as large as the names together."""
    children: dict[str, set[str]] = {}
    for name in names:
        if name:
            children.setdefault(name[0], set()).add(name[1:])
    firsts = union_of(tuple((ord(first), ord(first)) for first in children))
    branches: list[Node] = [] if "" in names else [EMPTY]
    branches.append(concat((Chars(complement_of(firsts)), ANY_TEXT)))
    branches.extend(concat((literal(first), all_but(frozenset(rests)))) for first, rests in sorted(children.items()))
    return Alternate(tuple(branches))


def writable(tree: Node) -> Node:
    """Return the strings of a plain tree that JSON writes without `\\u`: what has no short escape is left out."""
    if isinstance(tree, Concat):
        return concat(tuple(map(writable, tree.items)))
    if isinstance(tree, Alternate):
        return alternate(tuple(map(writable, tree.items)))
    if isinstance(tree, Repeat):
        item = writable(tree.item)
        return (NOTHING if tree.low else EMPTY) if item == NOTHING else Repeat(item, tree.low, tree.high)
    assert isinstance(tree, Chars)
    if tree.intervals == ANY_INTERVALS:
        return tree
    return Chars(complement_of(union_of(complement_of(tree.intervals), UNWRITABLE)))


def to_text(tree: Node) -> str:
    """Write a plain tree as an expression that llguidance reads, anchored at both ends."""
    return f"^(?:{write(writable(tree))})$"


def write(tree: Node) -> str:
    if isinstance(tree, Chars):
        if tree.intervals == ANY_INTERVALS:
            return r"[\s\S]"
        if not tree.intervals:
            return r"[^\s\S]"
        if len(tree.intervals) == 1 and tree.intervals[0][0] == tree.intervals[0][1]:
            return write_char(tree.intervals[0][0])
        return "[" + "".join(write_interval(low, high) for low, high in tree.intervals) + "]"
    if isinstance(tree, Concat):
        return "".join(f"(?:{write(item)})" if isinstance(item, Alternate) else write(item) for item in tree.items)
    if isinstance(tree, Alternate):
        return "|".join(write(item) for item in tree.items)
    assert isinstance(tree, Repeat)
    inner = write(tree.item) if isinstance(tree.item, Chars) else f"(?:{write(tree.item)})"
    if (tree.low, tree.high) == (0, None):
        return inner + "*"
    if (tree.low, tree.high) == (1, None):
        return inner + "+"
    if (tree.low, tree.high) == (0, 1):
        return inner + "?"
    high = "" if tree.high is None else str(tree.high)
    return f"{inner}{{{tree.low}}}" if tree.low == tree.high else f"{inner}{{{tree.low},{high}}}"


def write_interval(low: int, high: int) -> str:
    return write_char(low) if low == high else f"{write_char(low)}-{write_char(high)}"


def write_char(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"
