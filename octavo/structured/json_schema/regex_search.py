"""What `pattern` means: JSON Schema searches, a string matches when the pattern is found anywhere in it.

`parse_pattern` turns an ECMA-262 pattern (u flag) into trees that match a whole string, so that nothing behind it needs
anchors or looks around. Where ECMA-262 and Python's `re` (what many validators use) differ on a class, the class takes
what both allow: a generated string then satisfies either. Refused: back-references, unknown escapes, and looks around
whose automaton passes a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from octavo.structured.json_schema.regex_language import TooLargeError, combine
from octavo.structured.json_schema.regex_parser import ASCII_WORD, LINE_FEED, WIDE_WORD, parse_ecma
from octavo.structured.json_schema.regex_syntax import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Alternate,
    Anchor,
    Chars,
    Concat,
    Look,
    Node,
    PatternError,
    Repeat,
    WordEdge,
    alternate,
    complement_of,
    concat,
    is_nullable,
    is_plain,
)

MAX_BRANCHES = 256


@dataclass(frozen=True)
class Demands:
    """Trees that a whole string must match, and trees that it must not match."""

    required: tuple[Node, ...]
    forbidden: tuple[Node, ...]


@dataclass(frozen=True)
class Pattern:
    """One `pattern`: `narrow` holds where every dialect sees a match, `wide` where any does."""

    narrow: Demands
    wide: Demands


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    """Parse an ECMA-262 pattern with search semantics. Raises PatternError."""
    return Pattern(demands_of(text, wide=False), demands_of(text, wide=True))


def demands_of(text: str, *, wide: bool) -> Demands:
    tree = parse_ecma(text, wide=wide)
    required: list[Node] = []
    forbidden: list[Node] = []
    items = list(tree.items) if isinstance(tree, Concat) else [tree]
    # ^(?=A)(?!B)C means: ^A, not ^B, and ^C; the backend takes these apart better than we can join them.
    if len(items) > 1 and items[0] == Anchor(at_start=True):
        while len(items) > 1 and isinstance(items[1], Look) and not items[1].behind:
            look = items.pop(1)
            assert isinstance(look, Look)
            side, side_wide = (forbidden, not wide) if look.negative else (required, wide)
            side.append(Search(side_wide).found((items[0], look.item)))
    required.append(Search(wide).found(tuple(items)))
    return Demands(tuple(required), tuple(forbidden))


class Search:
    """Turns a tree with anchors and looks around into one for the whole strings in which it is found."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide
        self.num_branches = 0

    def found(self, items: tuple[Node, ...]) -> Node:
        return self.whole(ANY_TEXT, items)

    def whole(self, left: Node, items: tuple[Node, ...]) -> Node:
        """Return the strings made of a text of `left`, then a match of `items`, then anything."""
        for index, item in enumerate(items):
            rest = items[index + 1 :]
            if left == NOTHING:
                return NOTHING
            if is_plain(item):
                left = concat((left, item))
            elif isinstance(item, Concat):
                return self.whole(left, (*item.items, *rest))
            elif isinstance(item, Anchor) and item.at_start:
                left = EMPTY if is_nullable(left) else NOTHING
            elif isinstance(item, Anchor):
                return self.at_end(left, rest)
            elif isinstance(item, Look) and item.behind:
                left = self.join(left, self.behind(item), item.negative)
            elif isinstance(item, Look):
                ahead = Search(self.wide != item.negative).whole(EMPTY, (item.item,))
                return concat((left, self.join(self.whole(EMPTY, rest), ahead, item.negative)))
            elif isinstance(item, WordEdge):
                return self.at_edge(left, item, rest)
            else:
                return alternate(tuple(self.whole(left, (branch, *rest)) for branch in self.branches(item)))
        return concat((left, ANY_TEXT))

    def at_end(self, left: Node, rest: tuple[Node, ...]) -> Node:
        if not all(is_plain(item) and is_nullable(item) for item in rest) and any(
            not isinstance(item, Anchor) or item.at_start for item in rest
        ):
            if all(is_plain(item) for item in rest):
                return NOTHING
            raise PatternError("what follows $ is too complicated")
        # Python's $ also stands before a last line feed.
        return concat((left, Repeat(Chars(LINE_FEED), 0, 1))) if self.wide else left

    def branches(self, item: Node) -> tuple[Node, ...]:
        branches: tuple[Node, ...]
        if isinstance(item, Alternate):
            branches = item.items
        elif isinstance(item, Repeat) and item.high == 1:
            branches = (EMPTY, item.item) if item.low == 0 else (item.item,)
        else:
            raise PatternError("an anchor or a look around inside a repeated group is not supported")
        self.num_branches += len(branches)
        if self.num_branches > MAX_BRANCHES:
            raise PatternError("too many combinations of anchors and looks around")
        return branches

    def behind(self, look: Look) -> Node:
        if not is_plain(look.item):
            raise PatternError("anchors inside of a look-behind are not supported")
        return concat((ANY_TEXT, look.item))

    def at_edge(self, left: Node, edge: WordEdge, rest: tuple[Node, ...]) -> Node:
        """Return the strings in which `left` ends and `rest` begins at (or not at) the edge of a word."""
        word = Chars(WIDE_WORD if self.wide else ASCII_WORD)
        other = Chars(complement_of(ASCII_WORD if self.wide else WIDE_WORD))
        after_word = self.join(left, concat((ANY_TEXT, word)), False)
        after_other = self.join(left, alternate((EMPTY, concat((ANY_TEXT, other)))), False)
        right = self.whole(EMPTY, rest)
        before_word = self.join(right, concat((word, ANY_TEXT)), False)
        before_other = self.join(right, alternate((EMPTY, concat((other, ANY_TEXT)))), False)
        if edge.negated:
            before_word, before_other = before_other, before_word
        return alternate((concat((after_word, before_other)), concat((after_other, before_word))))

    def join(self, tree: Node, demand: Node, negative: bool) -> Node:
        if not negative and tree == ANY_TEXT:
            return demand
        try:
            return combine((tree,), (demand,)) if negative else combine((tree, demand), ())
        except TooLargeError:
            raise PatternError("its looks around are too large to take apart") from None
