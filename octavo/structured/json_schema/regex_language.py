"""Questions about sets of strings given by regular expressions: is a string in it, is it empty, what is its complement.

A tree becomes a non-deterministic automaton over classes of code points that no tree tells apart; sets of states are
followed lazily, so that no pattern takes exponential time to match. Every question has a bound and answers "unknown"
beyond it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from functools import lru_cache

from octavo.structured.json_schema.regex_syntax import (
    EMPTY,
    LAST_CODE_POINT,
    NOTHING,
    Alternate,
    Chars,
    Concat,
    Node,
    Repeat,
    alternate,
    concat,
    union_of,
)

MAX_NFA_STATES = 4_000
MAX_DFA_STEPS = 3_000  # states times classes
MAX_CLASSES = 600
MAX_ELIMINATION_STATES = 60
MAX_TREE_SIZE = 6_000


class TooLargeError(ValueError):
    """An automaton would pass its bound: the answer is unknown."""


class Automaton:
    """An NFA with empty moves for one tree; states are numbers, `accepting` is the last one."""

    def __init__(self, tree: Node) -> None:
        self.empty_moves: list[list[int]] = []
        self.char_moves: list[list[tuple[Chars, int]]] = []
        self.start, self.accepting = self.build(tree)
        self.initial = self.closure([self.start])

    def new_state(self) -> int:
        if len(self.empty_moves) >= MAX_NFA_STATES:
            raise TooLargeError
        self.empty_moves.append([])
        self.char_moves.append([])
        return len(self.empty_moves) - 1

    def build(self, tree: Node) -> tuple[int, int]:
        start, end = self.new_state(), self.new_state()
        if isinstance(tree, Chars):
            self.char_moves[start].append((tree, end))
        elif isinstance(tree, Concat):
            last = start
            for item in tree.items:
                item_start, item_end = self.build(item)
                self.empty_moves[last].append(item_start)
                last = item_end
            self.empty_moves[last].append(end)
        elif isinstance(tree, Alternate):
            for item in tree.items:
                item_start, item_end = self.build(item)
                self.empty_moves[start].append(item_start)
                self.empty_moves[item_end].append(end)
        else:
            assert isinstance(tree, Repeat)
            self.build_repeat(tree, start, end)
        return start, end

    def build_repeat(self, tree: Repeat, start: int, end: int) -> None:
        last = start
        for _ in range(tree.low):
            item_start, item_end = self.build(tree.item)
            self.empty_moves[last].append(item_start)
            last = item_end
        if tree.high is None:
            item_start, item_end = self.build(tree.item)
            self.empty_moves[last] += [item_start, end]
            self.empty_moves[item_end] += [item_start, end]
            return
        for _ in range(tree.high - tree.low):
            item_start, item_end = self.build(tree.item)
            self.empty_moves[last] += [item_start, end]
            last = item_end
        self.empty_moves[last].append(end)

    def closure(self, states: list[int]) -> frozenset[int]:
        seen = set(states)
        todo = list(states)
        while todo:
            for target in self.empty_moves[todo.pop()]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return frozenset(seen)

    def step(self, states: frozenset[int], code: int) -> frozenset[int]:
        targets = [
            target for state in states for chars, target in self.char_moves[state] if contains(chars.intervals, code)
        ]
        return self.closure(targets) if targets else frozenset()

    def boundaries(self) -> set[int]:
        """Return where a class of code points may begin."""
        found = set()
        for moves in self.char_moves:
            for chars, _ in moves:
                for low, high in chars.intervals:
                    found |= {low, high + 1}
        return found


def contains(intervals: tuple[tuple[int, int], ...], code: int) -> bool:
    index = bisect_right(intervals, (code, LAST_CODE_POINT + 1)) - 1
    return index >= 0 and intervals[index][1] >= code


@lru_cache(maxsize=512)
def automaton_of(tree: Node) -> Automaton:
    return Automaton(tree)


def matches(tree: Node, text: str) -> bool:
    """Tell whether a whole string is in the tree's language. Raises TooLargeError."""
    automaton = automaton_of(tree)
    states = automaton.initial
    for character in text:
        states = automaton.step(states, ord(character))
        if not states:
            return False
    return automaton.accepting in states


class Product:
    """The deterministic automaton of the strings in all of `required` and none of `forbidden`, made as it is walked."""

    def __init__(self, required: tuple[Node, ...], forbidden: tuple[Node, ...]) -> None:
        self.automata = [automaton_of(tree) for tree in (*required, *forbidden)]
        self.num_required = len(required)
        starts = sorted({0, 0xD800, 0xE000} | {code for automaton in self.automata for code in automaton.boundaries()})
        self.classes = [
            (low, high - 1)
            for low, high in zip(starts, [*starts[1:], LAST_CODE_POINT + 1], strict=True)
            if low <= LAST_CODE_POINT and not 0xD800 <= low <= 0xDFFF
        ]
        if len(self.classes) > MAX_CLASSES:
            raise TooLargeError
        self.initial = tuple(automaton.initial for automaton in self.automata)

    def step(self, state: tuple[frozenset[int], ...], code: int) -> tuple[frozenset[int], ...] | None:
        """Return the next state, or None when no string can be accepted any more."""
        following = tuple(automaton.step(states, code) for automaton, states in zip(self.automata, state, strict=True))
        return None if not all(following[: self.num_required]) else following

    def accepts(self, state: tuple[frozenset[int], ...]) -> bool:
        inside = [automaton.accepting in states for automaton, states in zip(self.automata, state, strict=True)]
        return all(inside[: self.num_required]) and not any(inside[self.num_required :])


@lru_cache(maxsize=2048)
def is_empty(required: tuple[Node, ...], forbidden: tuple[Node, ...]) -> bool | None:
    """Tell whether no string is in all of `required` and in none of `forbidden`; None where that is unknown."""
    try:
        product = Product(required, forbidden)
        seen = {product.initial}
        todo = [product.initial]
        num_steps = 0
        while todo:
            state = todo.pop()
            if product.accepts(state):
                return False
            num_steps += len(product.classes)
            if num_steps > MAX_DFA_STEPS:
                return None
            for low, _ in product.classes:
                following = product.step(state, low)
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(following)
    except TooLargeError:
        return None
    return True


@lru_cache(maxsize=256)
def combine(required: tuple[Node, ...], forbidden: tuple[Node, ...]) -> Node:
    """Return one tree for the strings in all of `required` and in none of `forbidden`. Raises TooLargeError."""
    product = Product(required, forbidden)
    numbers = {product.initial: 0}
    edges: dict[tuple[int, int], Node] = {}
    accepting: list[int] = []
    todo = [product.initial]
    while todo:
        state = todo.pop()
        number = numbers[state]
        if product.accepts(state):
            accepting.append(number)
        by_target: dict[int, list[tuple[int, int]]] = {}
        for low, high in product.classes:
            following = product.step(state, low)
            if following is None:
                continue
            if following not in numbers:
                if len(numbers) >= MAX_ELIMINATION_STATES:
                    raise TooLargeError
                numbers[following] = len(numbers)
                todo.append(following)
            by_target.setdefault(numbers[following], []).append((low, high))
        for target, intervals in by_target.items():
            edges[number, target] = Chars(union_of(tuple(intervals)))
    return eliminate(len(numbers), accepting, edges)


def eliminate(num_states: int, accepting: list[int], edges: dict[tuple[int, int], Node]) -> Node:
    """Turn a deterministic automaton that starts in state 0 into a tree by removing its states one after the other."""
    start, end = num_states, num_states + 1
    edges = {**edges, (start, 0): EMPTY, **{(state, end): EMPTY for state in accepting}}
    remaining = set(range(num_states))
    while remaining:
        incoming = Counter(target for _, target in edges)
        outgoing = Counter(source for source, _ in edges)
        state = min(remaining, key=lambda one: incoming[one] * outgoing[one])
        remaining.discard(state)
        loop = edges.pop((state, state), None)
        middle = () if loop is None else (Repeat(loop, 0, None),)
        sources = [(source, tree) for (source, target), tree in edges.items() if target == state]
        targets = [(target, tree) for (source, target), tree in edges.items() if source == state]
        edges = {edge: tree for edge, tree in edges.items() if state not in edge}
        for source, before in sources:
            for target, after in targets:
                path = concat((before, *middle, after))
                known = edges.get((source, target))
                edges[source, target] = path if known is None else alternate((known, path))
        if sum(size_of(tree) for tree in edges.values()) > MAX_TREE_SIZE:
            raise TooLargeError
    return edges.get((start, end), NOTHING)


def size_of(tree: Node) -> int:
    if isinstance(tree, Repeat):
        return 1 + size_of(tree.item)
    if isinstance(tree, (Concat, Alternate)):
        return 1 + sum(size_of(item) for item in tree.items)
    return 1


def length_range(tree: Node) -> tuple[int, int | None]:
    """Return bounds on the number of characters: every match is within, the ends need not be reached."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, Repeat):
        low, high = length_range(tree.item)
        return low * tree.low, 0 if high == 0 else None if high is None or tree.high is None else high * tree.high
    if isinstance(tree, (Concat, Alternate)):
        ranges = [length_range(item) for item in tree.items]
        highs = [high for _, high in ranges]
        if isinstance(tree, Concat):
            return sum(low for low, _ in ranges), None if None in highs else sum(high or 0 for high in highs)
        return min(low for low, _ in ranges), None if None in highs else max(high or 0 for high in highs)
    return 0, None


def num_endless(tree: Node) -> int:
    """Return how many repetitions without a bound a tree has."""
    if isinstance(tree, Repeat):
        return (tree.high is None) + num_endless(tree.item)
    return sum(map(num_endless, tree.items)) if isinstance(tree, (Concat, Alternate)) else 0


def within_length(tree: Node, high: int) -> Node | None:
    """Return a part of a tree's strings that have at most `high` characters: endless repetitions get equal bounds."""
    fitting, least, most = None, 1, high
    while least <= most:
        bound = (least + most) // 2
        candidate = _with_bound(tree, bound)
        longest = length_range(candidate)[1]
        if longest is not None and longest <= high:
            fitting, least = candidate, bound + 1
        else:
            most = bound - 1
    return fitting


def _with_bound(tree: Node, bound: int) -> Node:
    if isinstance(tree, Repeat):
        return Repeat(_with_bound(tree.item, bound), tree.low, max(tree.low, bound) if tree.high is None else tree.high)
    if isinstance(tree, (Concat, Alternate)):
        return type(tree)(tuple(_with_bound(item, bound) for item in tree.items))
    return tree


def finite_language(tree: Node, limit: int) -> list[str] | None:
    """Return all strings of a tree where they are no more than `limit`, else None."""
    if isinstance(tree, Chars):
        if sum(high - low + 1 for low, high in tree.intervals) > limit:
            return None
        return [chr(code) for low, high in tree.intervals for code in range(low, high + 1)]
    if isinstance(tree, Alternate):
        found: dict[str, None] = {}
        for item in tree.items:
            texts = finite_language(item, limit)
            if texts is None:
                return None
            found |= dict.fromkeys(texts)
        return list(found) if len(found) <= limit else None
    if isinstance(tree, Repeat):
        if tree.high is None or tree.high > limit:
            return None
        copies = [concat((tree.item,) * count) for count in range(tree.low, tree.high + 1)]
        return finite_language(Alternate(tuple(copies)), limit)
    assert isinstance(tree, Concat)
    found = {"": None}
    for item in tree.items:
        texts = finite_language(item, limit)
        if texts is None or len(found) * len(texts) > limit:
            return None
        found = {before + after: None for before in found for after in texts}
    return list(found)
