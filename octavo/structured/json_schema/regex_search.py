"""What `pattern` means: JSON Schema searches, a string matches when the pattern is found anywhere in it.

`parse_pattern` turns an ECMA-262 pattern (u flag) into trees that match a whole string, so that nothing behind it needs
anchors or looks around. Where ECMA-262 and Python's `re` (what many validators use) differ on a class, the class takes
what both allow: a generated string then satisfies either. Refused: back-references, unknown escapes, and looks around
whose automaton passes a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from octavo.structured.json_schema.regex_language import MAX_TREE_SIZE, TooLargeError, combine, length_range, size_of
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
    ending,
    is_nullable,
    is_plain,
)

MAX_BRANCHES = 256
TOO_LARGE = "its looks around are too large to take apart"


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
    items: list[Node] = list(tree.items) if isinstance(tree, Concat) else [tree]
    # ^(?=A)(?!B)C means: ^A, not ^B, and ^C; the backend takes these apart better than we can join them.
    if len(items) > 1 and items[0] == Anchor(at_start=True):
        while len(items) > 1 and isinstance(items[1], Look) and not items[1].behind:
            look = items.pop(1)
            assert isinstance(look, Look)
            side, side_wide = (forbidden, not wide) if look.negative else (required, wide)
            side.append(Search(side_wide).found((items[0], look.item)))
    if (loop := tempered_loop(items)) is not None:  # ^((?!A)B)*$ means: ^B*$, and surely if A is nowhere
        look, items[1] = loop
        if not wide:
            forbidden.append(Search(not wide).found((look.item,)))
    required.append(Search(wide).found(tuple(items)))
    return Demands(tuple(required), tuple(forbidden))


def tempered_loop(items: list[Node]) -> tuple[Look, Repeat] | None:
    """Return the look of ^((?!A)B)*$, and its loop without it; None for any other pattern."""
    if len(items) != 3 or items[::2] != [Anchor(at_start=True), Anchor(at_start=False)]:
        return None
    loop = items[1]
    if not isinstance(loop, Repeat) or not isinstance(loop.item, Concat) or loop.high == 1:
        return None
    look, *body = loop.item.items
    if not isinstance(look, Look) or not look.negative or look.behind or not all(map(is_plain, body)):
        return None
    return look, Repeat(concat(tuple(body)), loop.low, loop.high)


def looks_back(items: tuple[Node, ...], is_inside: bool = False) -> bool:
    """Tell whether a match of these items may depend on what is before it. is_inside: a character of it is known."""
    for item in items:
        if isinstance(item, Look):
            is_far = item.behind and not (is_inside and isinstance(item.item, Chars))
            if is_far or looks_back((item.item,), is_inside):
                return True
        elif isinstance(item, WordEdge) or item == Anchor(at_start=True):
            if not is_inside:
                return True
        elif isinstance(item, Concat):
            if looks_back(item.items, is_inside):
                return True
        elif isinstance(item, Alternate):
            if any(looks_back((branch,), is_inside) for branch in item.items):
                return True
        elif isinstance(item, Repeat) and looks_back((item.item,), is_inside):
            return True
        is_inside = is_inside or length_range(item)[0] > 0
    return False


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
                left = self.looked(left, item)
            elif isinstance(item, Look):
                self.check_left(left, (item.item,))
                self.check_left(left, rest)
                return concat((left, self.looked(self.whole(EMPTY, rest), item)))
            elif isinstance(item, WordEdge):
                self.check_left(left, rest)
                return self.at_edge(left, item, rest)
            elif is_plain(settled := self.settled(item)):
                left = concat((left, settled))
            else:
                return alternate(tuple(self.whole(left, (branch, *rest)) for branch in self.branches(item)))
        return concat((left, ANY_TEXT))

    def at_end(self, left: Node, rest: tuple[Node, ...]) -> Node:
        if all(map(is_plain, rest)):
            num_needed = length_range(concat(rest))[0]
            if num_needed > self.wide:  # Python's $ also stands before a last line feed
                return NOTHING
        elif any(not isinstance(item, Anchor) or item.at_start for item in rest):
            raise PatternError("what follows $ is too complicated")
        return concat((left, Repeat(Chars(LINE_FEED), 0, 1))) if self.wide else left

    def check_left(self, left: Node, items: tuple[Node, ...]) -> None:
        """Raise PatternError if these items, which are about to be looked at without `left`, look back at it."""
        if left != EMPTY and looks_back(items):
            raise PatternError("looking back from a place at which the pattern looks around is not supported")

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

    def settled(self, tree: Node) -> Node:
        """Work looks at single characters into what is beside them in the same group, where something surely is."""
        if isinstance(tree, Repeat):
            return Repeat(self.settled(tree.item), tree.low, tree.high)
        if isinstance(tree, Alternate):
            return alternate(tuple(map(self.settled, tree.items)))
        if not isinstance(tree, Concat):
            return tree
        items = list(map(self.settled, tree.items))
        return concat(tuple(self.settled_side(self.settled_side(items, behind=True), behind=False)))

    def settled_side(self, items: list[Node], *, behind: bool) -> list[Node]:
        done: list[Node] = []  # the nearest to what comes next is the last
        for item in items if behind else items[::-1]:
            if isinstance(item, Look) and item.behind == behind and isinstance(item.item, Chars):
                beside: Node = EMPTY
                while done and is_plain(done[-1]) and is_nullable(beside):
                    beside = concat((done.pop(), beside) if behind else (beside, done.pop()))
                done += [beside, item] if is_nullable(beside) else [self.looked(beside, item)]
            else:
                done.append(item)
        return done if behind else done[::-1]

    def looked(self, tree: Node, look: Look) -> Node:
        """Return the strings of a tree that a look at its end allows, or at its start."""
        if isinstance(look.item, Chars):
            chars = Chars(complement_of(look.item.intervals)) if look.negative else look.item
            return self.beside(tree, chars, at_start=not look.behind, or_nothing=look.negative)
        if not look.behind:
            ahead = Search(self.wide != look.negative).whole(EMPTY, (look.item,))
            return self.join(tree, ahead, look.negative)
        if not is_plain(look.item):
            raise PatternError("anchors inside of a look-behind are not supported")
        return self.join(tree, concat((ANY_TEXT, look.item)), look.negative)

    def beside(self, tree: Node, chars: Chars, *, at_start: bool, or_nothing: bool) -> Node:
        """Return the strings of a tree that end with one of `chars` (or begin), or_nothing: or are empty."""
        if size_of(tree) > MAX_TREE_SIZE:
            raise PatternError(TOO_LARGE)
        found = ending(tree, chars, at_start=at_start)
        return alternate((EMPTY, found)) if or_nothing and is_nullable(tree) else found

    def at_edge(self, left: Node, edge: WordEdge, rest: tuple[Node, ...]) -> Node:
        """Return the strings in which `left` ends and `rest` begins at (or not at) the edge of a word."""
        word = Chars(WIDE_WORD if self.wide else ASCII_WORD)
        other = Chars(complement_of(ASCII_WORD if self.wide else WIDE_WORD))
        right = self.whole(EMPTY, rest)
        after_word = self.beside(left, word, at_start=False, or_nothing=False)
        after_other = self.beside(left, other, at_start=False, or_nothing=True)
        before_word = self.beside(right, word, at_start=True, or_nothing=False)
        before_other = self.beside(right, other, at_start=True, or_nothing=True)
        if not edge.negated:
            return alternate((concat((after_word, before_other)), concat((after_other, before_word))))
        if not self.wide:  # Python sees none of these places in an empty text
            some_before = self.beside(left, other, at_start=False, or_nothing=False)
            some_behind = self.beside(right, other, at_start=True, or_nothing=False)
            nowhere = (concat((some_before, before_other)), concat((after_other, some_behind)))
            return alternate((concat((after_word, before_word)), *nowhere))
        return alternate((concat((after_word, before_word)), concat((after_other, before_other))))

    def join(self, tree: Node, demand: Node, negative: bool) -> Node:
        if not negative and tree == ANY_TEXT:
            return demand
        try:
            return combine((tree,), (demand,)) if negative else combine((tree, demand), ())
        except TooLargeError:
            raise PatternError(TOO_LARGE) from None
