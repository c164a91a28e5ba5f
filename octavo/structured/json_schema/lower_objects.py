"""Object shapes to plans: rules on names, counts and missing properties become names, patterns and alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

from octavo.structured.json_schema import regex_language
from octavo.structured.json_schema.errors import IndescribableError, SchemaRefusedError
from octavo.structured.json_schema.expand import Expander
from octavo.structured.json_schema.intersect import value_by_rules
from octavo.structured.json_schema.plans import ObjectPlan
from octavo.structured.json_schema.regex_language import TooLargeError
from octavo.structured.json_schema.regex_search import parse_pattern
from octavo.structured.json_schema.regex_syntax import Alternate, Node, all_but, length_between, literal, to_text
from octavo.structured.json_schema.shapes import (
    ANY,
    NEVER,
    Conjunction,
    Extra,
    NameRules,
    ObjectShape,
    StringShape,
    both,
)
from octavo.structured.json_schema.strings import pattern_matches, string_in_shape, string_trees

MAX_SUBSETS = 128  # sets of properties written out one by one
MAX_LITERALS = 40  # names that a pattern may stand for to become properties
MAX_CELLS = 16  # pieces into which patterns cut the property names


@dataclass(frozen=True, slots=True)
class Cell:
    """The names that match all of `required` and none of `forbidden`, and the patterns known to match."""

    required: tuple[Node, ...]
    forbidden: tuple[Node, ...]
    patterns: frozenset[str]


def lower_object(shape: ObjectShape, expander: Expander, *, closed: bool) -> list[ObjectPlan]:
    """Return plans whose union is the shape; `closed`: no property but those with a name or a pattern."""
    shape, name_trees = apply_property_names(name_literal_patterns(shape), expander)
    if closed and (shape.properties or any(rule.patterns for rule in shape.rules)):
        shape = replace(shape, rules=(*shape.rules, *no_others(shape)))
    properties = dict(shape.properties)
    if any(properties[name] == NEVER for name in shape.required):
        return []
    num_patterns = sum(len(rule.patterns) for rule in shape.rules)
    expander.budget.spend(1_000 * num_patterns**2, "patternProperties", shape.pointer)
    patterns, rest = unnamed_properties(shape, name_trees)
    plan = ObjectPlan(shape.properties, shape.required, tuple(patterns), rest)
    plans = [plan]
    for extra in shape.extras:
        plans = [narrowed for one in plans for narrowed in with_extra(one, extra, shape.pointer)]
        expander.budget.spend(len(plans), "not", shape.pointer)
    return [counted for one in plans for counted in with_counts(one, shape, expander)]


def no_others(shape: ObjectShape) -> tuple[NameRules, ...]:
    patterns = {pattern: None for rule in shape.rules for pattern, _ in rule.patterns}
    if any(not rule.patterns and rule.rest != ANY for rule in shape.rules):
        return ()  # the schema speaks of other properties itself
    return (NameRules(tuple((pattern, ANY) for pattern in patterns), NEVER),)


def name_literal_patterns(shape: ObjectShape) -> ObjectShape:
    """Turn patterns that match only a few names into properties with these names."""
    properties = dict(shape.properties)
    literal_patterns = set()
    for rule in shape.rules:
        for pattern, _ in rule.patterns:
            wide = parse_pattern(pattern).wide
            names = regex_language.finite_language(wide.required[0], MAX_LITERALS) if len(wide.required) == 1 else None
            if names is None:
                continue
            literal_patterns.add(pattern)
            for name in names:
                if name not in properties:
                    # A name that only some dialects see matched is left out.
                    surely = pattern_matches(pattern, name)[1]
                    properties[name] = value_by_rules(shape.rules, name) if surely else NEVER
    rules = tuple(
        NameRules(tuple(entry for entry in rule.patterns if entry[0] not in literal_patterns), rule.rest)
        for rule in shape.rules
    )
    return replace(shape, properties=tuple(properties.items()), rules=rules)


def apply_property_names(shape: ObjectShape, expander: Expander) -> tuple[ObjectShape, tuple[Node, ...]]:
    """Work propertyNames into the named properties; return trees that all other names must match."""
    trees: list[Node] = []
    for terms in shape.names:
        found = expander.expand_terms(terms).strings
        strings = [one for one in found if isinstance(one, StringShape)]
        if len(strings) < len(found):
            raise SchemaRefusedError("the names cannot be described", "propertyNames", shape.pointer)
        if StringShape() in strings:
            continue
        properties = {
            name: value if any(string_in_shape(name, one) for one in strings) else NEVER
            for name, value in shape.properties
        }
        if all(one.values is not None for one in strings):
            for name in (name for one in strings for name in one.values or ()):
                if name not in properties:
                    properties[name] = value_by_rules(shape.rules, name)
            shape = replace(shape, rules=(NameRules((), NEVER),))
        else:
            trees.append(Alternate(tuple(tree_of(one) for one in strings)) if len(strings) > 1 else tree_of(strings[0]))
        shape = replace(shape, properties=tuple(properties.items()))
    return shape, tuple(trees)


def tree_of(shape: StringShape) -> Node:
    """Return one tree for a shape of strings."""
    required: list[Node] = [Alternate(tuple(map(literal, shape.values or ())))]
    forbidden: list[Node] = []
    if shape.values is None:
        required, forbidden = string_trees(shape)
        if shape.low or shape.high is not None:
            ranges = [regex_language.length_range(tree) for tree in required]
            implied = any(
                low >= shape.low and (shape.high is None or (high is not None and high <= shape.high))
                for low, high in ranges
            )
            if not implied:
                required.append(length_between(shape.low, shape.high))
    return combined(tuple(required), tuple(forbidden), "propertyNames", shape.pointer)


def combined(required: tuple[Node, ...], forbidden: tuple[Node, ...], keyword: str, pointer: str) -> Node:
    if len(required) == 1 and not forbidden:
        return required[0]
    try:
        return regex_language.combine(required, forbidden)
    except TooLargeError:
        raise SchemaRefusedError("the patterns overlap in a way too large to take apart", keyword, pointer) from None


def unnamed_properties(
    shape: ObjectShape, name_trees: tuple[Node, ...]
) -> tuple[list[tuple[str, Conjunction]], Conjunction]:
    """Return (pattern of names, value) for disjoint sets of names, and the value under all other names."""
    rest = ANY
    for rule in shape.rules:
        rest = both(rest, rule.rest)
    texts = list(dict.fromkeys(pattern for rule in shape.rules for pattern, _ in rule.patterns))
    if not texts and not name_trees:
        return [], rest
    cells = cells_of(texts, name_trees, shape.pointer)
    # Other names go by additionalProperties where all dialects agree which they are; else they get their own pattern.
    rest_by_keyword = not name_trees and all(is_clear(text) for text in texts)
    patterns: list[tuple[str, Conjunction]] = []
    for cell in cells:
        value = value_in_cell(shape.rules, cell)
        if (cell.patterns or not rest_by_keyword) and (value != NEVER or rest_by_keyword):
            patterns.append((text_of_cell(cell, shape.pointer), value))
    has_rest = rest_by_keyword and any(not cell.patterns for cell in cells)
    return patterns, rest if has_rest else NEVER


def text_of_cell(cell: Cell, pointer: str) -> str:
    forbidden = tuple(
        tree for tree in cell.forbidden if regex_language.is_empty((*cell.required, tree), ()) is not True
    )
    return to_text(combined(cell.required, forbidden, "patternProperties", pointer))


def is_clear(pattern: str) -> bool:
    """Tell whether all dialects agree on what a pattern matches."""
    parsed = parse_pattern(pattern)
    return parsed.narrow == parsed.wide


def cells_of(patterns: list[str], name_trees: tuple[Node, ...], pointer: str) -> list[Cell]:
    """Cut the names into cells such that a pattern matches all names of a cell or none; empty cells are left out."""
    cells = [Cell(name_trees, (), frozenset())]
    for pattern in patterns:
        parsed = parse_pattern(pattern)
        narrow = combined(parsed.narrow.required, parsed.narrow.forbidden, "patternProperties", pointer)
        wide = combined(parsed.wide.required, parsed.wide.forbidden, "patternProperties", pointer)
        refined = []
        for cell in cells:
            inside = Cell((*cell.required, narrow), cell.forbidden, cell.patterns | {pattern})
            outside = Cell(cell.required, (*cell.forbidden, wide), cell.patterns)
            if regex_language.is_empty((*cell.required, wide), cell.forbidden) is True:
                refined.append(cell)
                continue
            refined.append(inside)
            if regex_language.is_empty(outside.required, outside.forbidden) is not True:
                refined.append(outside)
        cells = refined
        if len(cells) > MAX_CELLS:
            raise SchemaRefusedError("too many patterns overlap", "patternProperties", pointer)
    return cells


def value_in_cell(rules: tuple[NameRules, ...], cell: Cell) -> Conjunction:
    value = ANY
    for rule in rules:
        matched = [terms for pattern, terms in rule.patterns if pattern in cell.patterns]
        for terms in matched or [rule.rest]:
            value = both(value, terms)
    return value


def with_extra(plan: ObjectPlan, extra: Extra, pointer: str) -> Iterator[ObjectPlan]:
    """Yield the plans in which some property other than `extra.names` has a value of `extra.terms`."""
    if plan.rest != NEVER or plan.patterns:
        raise IndescribableError(
            "that some property without a name breaks a rule cannot be enforced; set additionalProperties to false",
            "additionalProperties",
            pointer,
        )
    for name, terms in plan.properties:
        if name not in extra.names and terms != NEVER:
            properties = tuple(
                (known, both(value, extra.terms) if known == name else value) for known, value in plan.properties
            )
            yield replace(plan, properties=properties, required=tuple(dict.fromkeys((*plan.required, name))))


def with_counts(plan: ObjectPlan, shape: ObjectShape, expander: Expander) -> list[ObjectPlan]:
    """Return the plans with minProperties and maxProperties in them."""
    possible = [name for name, terms in plan.properties if terms != NEVER]
    optional = [name for name in possible if name not in plan.required]
    has_others = plan.rest != NEVER or bool(plan.patterns)
    low = max(0, shape.low - len(plan.required))
    high = None if shape.high is None else shape.high - len(plan.required)
    if high is not None and high < 0:
        return []
    if high is not None and not has_others and high >= len(optional):
        high = None
    if low == 0 and high is None:
        return [plan]
    if not has_others and low > len(optional):
        return []
    expander.budget.spend(len(optional), "minProperties", shape.pointer)
    if low <= 1 and high is None:
        plans = [replace(plan, required=(*plan.required, name)) for name in optional]
        return plans + (others_only(plan, shape, 1, None) if has_others else [])
    most = len(optional) if high is None else min(high, len(optional))
    if not has_others and high is None and comb(len(optional), low) <= MAX_SUBSETS:
        return [replace(plan, required=(*plan.required, *chosen)) for chosen in combinations(optional, low)]
    sizes = range(0 if has_others else low, most + 1)
    if sum(comb(len(optional), size) for size in sizes) > MAX_SUBSETS:
        keyword = "minProperties" if high is None else "maxProperties"
        raise SchemaRefusedError(f"{len(optional)} optional properties are too many to count", keyword, shape.pointer)
    plans = []
    for size in sizes:
        for chosen in combinations(optional, size):
            properties = tuple(
                (name, NEVER if name in optional and name not in chosen else terms) for name, terms in plan.properties
            )
            exact = replace(plan, properties=properties, required=(*plan.required, *chosen))
            left = None if high is None else high - size
            if has_others and left != 0:
                plans += others_only(exact, shape, max(0, low - size), left)
            elif size >= low:
                plans.append(replace(exact, rest=NEVER, patterns=()))
    return plans


def others_only(plan: ObjectPlan, shape: ObjectShape, low: int, high: int | None) -> list[ObjectPlan]:
    """Return the plan with its required properties and `low` to `high` others without a name."""
    if low > 1:
        raise SchemaRefusedError(
            "more than one property without a name cannot be demanded: names could repeat",
            "minProperties",
            shape.pointer,
        )
    absent = frozenset(name for name, _ in plan.properties if name not in plan.required)
    required = len(plan.required)
    counted = replace(plan, low=low + required if low else 0, high=None if high is None else high + required)
    if not absent:
        return [counted]
    if plan.patterns:
        raise SchemaRefusedError("it cannot be counted together with patternProperties", "minProperties", shape.pointer)
    if sum(map(len, absent)) > 2_000 or max(map(len, absent)) > 60:
        raise SchemaRefusedError("the property names are too long to leave out", "minProperties", shape.pointer)
    properties = tuple((name, terms) for name, terms in plan.properties if name in plan.required)
    names_left = all_but(absent | frozenset(plan.required))
    return [replace(counted, properties=properties, patterns=((to_text(names_left), plan.rest),), rest=NEVER)]
