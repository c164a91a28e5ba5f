"""What `pattern` means: JSON Schema searches, a string matches when the pattern is found anywhere in it.

`parse_pattern` turns an ECMA-262 pattern (u flag) into trees that match a whole string, so that nothing behind it needs anchors.
Where ECMA-262 and Python's `re` (what many validators use) differ on a class, the class takes what both allow: a
generated string then satisfies either.

Refused, because no automaton of bounded size has them or because dialects disagree: back-references, look-behind, look-ahead
other than at the beginning, word boundaries, unknown escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from octavo.structured.json_schema.regex_parser import LINE_FEED, parse_ecma
from octavo.structured.json_schema.regex_syntax import (
    ANY_TEXT,
    EMPTY,
    Alternate,
    Anchor,
    Chars,
    Concat,
    Look,
    Node,
    PatternError,
    Repeat,
    concat,
    is_nullable,
)

MAX_ANCHOR_VARIANTS = 64


@dataclass(frozen=True)
class Pattern:
    """What one `pattern` demands of a whole string: to match every one of `required` and none of `forbidden`.

    `narrow` holds where every dialect sees a match, `wide` where any does.
    """

    narrow: Demands
    wide: Demands


@dataclass(frozen=True)
class Demands:
    required: tuple[Node, ...]
    forbidden: tuple[Node, ...]


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    """Parse an ECMA-262 pattern with search semantics. Raises PatternError."""
    narrow, narrow_looks = demands_of(text, wide=False)
    wide, wide_looks = demands_of(text, wide=True)
    return Pattern(Demands(narrow, wide_looks), Demands(wide, narrow_looks))


def demands_of(text: str, *, wide: bool) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the trees that a string must match, and those of its negative look-aheads."""
    tree = parse_ecma(text, wide=wide)
    required: list[Node] = []
    forbidden: list[Node] = []
    items = list(tree.items) if isinstance(tree, Concat) else [tree]
    # ^(?=A)(?!B)C means: ^A, not ^B, and ^C.
    if len(items) > 1 and items[0] == Anchor(at_start=True):
        while len(items) > 1 and isinstance(items[1], Look):
            look = items.pop(1)
            assert isinstance(look, Look)
            side = forbidden if look.negative else required
            side.append(without_anchors(concat((items[0], look.item)), wide=wide))
    required.append(without_anchors(concat(tuple(items)), wide=wide))
    return tuple(required), tuple(forbidden)


def without_anchors(tree: Node, *, wide: bool) -> Node:
    """Return a tree that matches the whole of exactly the strings in which `tree` is found.

    `wide` lets $ stand before a last line feed, as Python does.
    """
    at_end = (Repeat(Chars(LINE_FEED), 0, 1),) if wide else ()
    branches = []
    for left_anchored, body, right_anchored in anchor_variants(tree):
        parts = () if left_anchored else (ANY_TEXT,)
        branches.append(concat((*parts, body, *(at_end if right_anchored else (ANY_TEXT,)))))
    if not branches:
        return Chars(())
    return branches[0] if len(branches) == 1 else Alternate(tuple(branches))


def anchor_variants(tree: Node) -> list[tuple[bool, Node, bool]]:
    """Return (must begin the string, tree without anchors, must end the string) for each way to pass the anchors."""
    if isinstance(tree, Anchor):
        return [(tree.at_start, EMPTY, not tree.at_start)]
    if isinstance(tree, Look):
        raise PatternError("look-ahead other than right after a leading ^ is not supported")
    if not has_anchor(tree):
        return [(False, tree, False)]
    if isinstance(tree, Alternate):
        variants = [variant for item in tree.items for variant in anchor_variants(item)]
    elif isinstance(tree, Repeat):
        if tree.high != 1:
            raise PatternError("an anchor (^ or $) inside a repeated group is not supported")
        variants = [*([(False, EMPTY, False)] if tree.low == 0 else []), *anchor_variants(tree.item)]
    else:
        assert isinstance(tree, Concat)
        variants = [(False, EMPTY, False)]
        for item in tree.items:
            variants = [
                joined
                for left in variants
                for right in anchor_variants(item)
                if (joined := join_variants(left, right)) is not None
            ]
            if len(variants) > MAX_ANCHOR_VARIANTS:
                raise PatternError("too many combinations of anchors (^ and $)")
    if len(variants) > MAX_ANCHOR_VARIANTS:
        raise PatternError("too many combinations of anchors (^ and $)")
    return variants


def join_variants(left: tuple[bool, Node, bool], right: tuple[bool, Node, bool]) -> tuple[bool, Node, bool] | None:
    """Concatenate two variants, or return None where an anchor inside makes that impossible."""
    left_body, right_body = left[1], right[1]
    if right[0]:  # nothing may stand before
        if not is_nullable(left_body):
            return None
        left_body = EMPTY
    if left[2]:  # nothing may follow
        if not is_nullable(right_body):
            return None
        right_body = EMPTY
    return (left[0] or right[0], concat((left_body, right_body)), left[2] or right[2])


def has_anchor(tree: Node) -> bool:
    if isinstance(tree, (Anchor, Look)):
        return True
    if isinstance(tree, Repeat):
        return has_anchor(tree.item)
    return isinstance(tree, (Concat, Alternate)) and any(has_anchor(item) for item in tree.items)
