"""Keywords to shapes: the meaning of one schema object, with all that applies to the same value worked in.

`Expander.expand` goes through allOf, anyOf, oneOf, not, if, $ref and dependencies, and stops at what is inside of the
value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.structured.json_schema.dialects import DRAFT_7, DRAFT_2019, OWN_KEYWORDS, is_assertion, is_in_dialect
from octavo.structured.json_schema.document import Document, Node
from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.intersect import intersect_shapes, unite_shapes
from octavo.structured.json_schema.keywords import KeywordReader, is_trivial, shapes_of_value, shapes_of_values
from octavo.structured.json_schema.limits import MAX_IN_PLACE_DEPTH, Budget
from octavo.structured.json_schema.negate import negate_shapes
from octavo.structured.json_schema.shapes import (
    ANY,
    ANYTHING,
    NEVER,
    NOTHING,
    ArrayShape,
    Conjunction,
    ConstTerm,
    ObjectShape,
    Opaque,
    SchemaTerm,
    Shapes,
    Term,
    both,
)
from octavo.structured.json_schema.unevaluated import close_unevaluated
from octavo.structured.json_schema.values import JsonValue

MAX_PROBE_DEPTH = 3
MAX_PROBE_STEPS = 20_000
MAX_OUTSIDE, NUM_KEPT = 32, 4  # shapes that one branch of oneOf may come to, and how many are kept of more


class BusyError(Exception):
    """A probe has come back to a schema that is being expanded: the answer is unknown."""


class Expander:
    """Expands the schemas of one document, each once."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self.document = document
        self.budget = budget
        self.known: dict[int, Shapes] = {}
        self.chain: list[int] = []  # schemas about the same value that are being expanded, outermost first
        self.busy: set[int] = set()  # the same, of all values that are being looked at
        self.empty: dict[frozenset[Term], bool] = {}
        self.probe_depth = 0
        self.applicators: dict[str, Callable[[Node, dict[str, JsonValue], str], Shapes]] = {
            "allOf": self.all_of,
            "anyOf": self.any_of,
            "not": self.negation,
            "if": self.condition,
            "$ref": self.reference,
            "$dynamicRef": self.dynamic_reference,
            "$recursiveRef": self.dynamic_reference,
            "dependencies": self.dependencies,
            "dependentRequired": self.dependencies,
            "dependentSchemas": self.dependencies,
            "const": self.constant,
            "enum": self.constant,
        }

    def expand(self, number: int) -> Shapes:
        """Return the shapes of one schema. Raises SchemaRefusedError."""
        known = self.known.get(number)
        if known is not None:
            return known
        node = self.document.nodes[number]
        if number in self.chain:
            raise SchemaRefusedError("it refers to itself without any property or item between", "$ref", node.pointer)
        if number in self.busy:
            raise BusyError
        if len(self.chain) >= MAX_IN_PLACE_DEPTH:
            raise SchemaRefusedError(
                f"more than {MAX_IN_PLACE_DEPTH} schemas within each other speak of one value", "", node.pointer
            )
        self.chain.append(number)
        self.busy.add(number)
        try:
            shapes = self.expand_node(node)
        finally:
            self.chain.pop()
            self.busy.discard(number)
        self.known[number] = shapes
        return shapes

    def expand_node(self, node: Node) -> Shapes:
        schema = node.schema
        if schema is True:
            return ANYTHING
        if schema is False:
            return NOTHING
        assert isinstance(schema, dict)
        if "$ref" in schema and node.dialect <= DRAFT_7:
            return self.reference(node, schema, "$ref")
        result = ANYTHING
        own_done = False
        for keyword in sorted(schema, key=lambda name: LATE_KEYWORDS.get(name, 0)):
            if keyword in OWN_KEYWORDS and not own_done:
                own_done = True
                reader = KeywordReader(self.document, node, self.conjunction_of)
                part = reader.own_shapes()
            elif keyword == "oneOf":
                part = self.one_of(node, schema, result)
            elif keyword in self.applicators and is_in_dialect(keyword, node.dialect):
                part = self.applicators[keyword](node, schema, keyword)
            else:
                continue
            result = intersect_shapes(result, part, self.budget, keyword, node.pointer)
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if keyword in schema and node.dialect >= DRAFT_2019:
                terms = self.conjunction_of(self.document.child(node, keyword))
                result = close_unevaluated(result, keyword, terms, self.budget, node.pointer)
        return result

    def expand_terms(self, terms: Conjunction) -> Shapes:
        """Return the shapes of the values that satisfy all terms."""
        result = ANYTHING
        for term in terms:
            if isinstance(term, SchemaTerm):
                pointer = self.document.nodes[term.number].pointer
                part = self.expand(term.number)
            elif isinstance(term, ConstTerm):
                pointer, part = "", shapes_of_value(term.value, "")
            else:
                return NOTHING
            if term.negated:
                part = negate_shapes(part, self.budget, "not", pointer)
            result = intersect_shapes(result, part, self.budget, "allOf", pointer)
        return result

    def conjunction_of(self, number: int) -> Conjunction:
        """Return a schema as what a property or an item must satisfy; plain references are followed."""
        seen: set[int] = set()
        while True:
            node = self.document.nodes[number]
            if node.schema is False:
                return NEVER
            if node.schema is True or is_trivial(node):
                return ANY
            assert isinstance(node.schema, dict)
            reference = node.schema.get("$ref")
            plain = node.dialect <= DRAFT_7 or all(
                key == "$ref" or not is_assertion(key, node.dialect) for key in node.schema
            )
            if not isinstance(reference, str) or not plain:
                return (SchemaTerm(number),)
            if number in seen:
                raise SchemaRefusedError("references go round in a circle", "$ref", node.pointer)
            seen.add(number)
            number = self.document.resolve(node, reference, "$ref")

    def is_empty(self, terms: Conjunction) -> bool:
        """Tell whether surely no value satisfies all terms; False where that is unknown."""
        if len(terms) == 0:
            return False
        key = frozenset(terms)
        if key in self.empty:
            return self.empty[key]
        if self.probe_depth >= MAX_PROBE_DEPTH:
            return False
        outer_chain, self.chain = self.chain, []
        outer_budget, self.budget = self.budget, Budget(min(MAX_PROBE_STEPS, self.budget.steps_left))
        granted = self.budget.steps_left
        self.probe_depth += 1
        try:
            shapes = self.expand_terms(terms)
            self.empty[key] = self.shapes_are_empty(shapes)
            return self.empty[key]
        except SchemaRefusedError:
            self.empty[key] = False
            return False
        except BusyError:
            return False
        finally:
            outer_budget.steps_left -= granted - max(self.budget.steps_left, 0)
            self.budget = outer_budget
            self.chain = outer_chain
            self.probe_depth -= 1

    def shapes_are_empty(self, shapes: Shapes) -> bool:
        if shapes.null or shapes.booleans or shapes.numbers or shapes.strings:
            return False
        for shape in (*shapes.arrays, *shapes.objects):
            if isinstance(shape, Opaque):
                return False
            if isinstance(shape, ArrayShape):
                needed = [
                    shape.prefix[index] if index < len(shape.prefix) else shape.items
                    for index in range(min(shape.low, len(shape.prefix) + 1))
                ]
            else:
                values = dict(shape.properties)
                needed = [values[name] for name in shape.required if name in values]
            if not any(self.is_empty(terms) for terms in needed):
                return False
        return True

    def without_empty(self, shapes: Shapes) -> Shapes:
        """Leave out the arrays and objects that surely have no values."""
        return replace(
            shapes,
            arrays=tuple(shape for shape in shapes.arrays if not self.shapes_are_empty(Shapes(arrays=(shape,)))),
            objects=tuple(shape for shape in shapes.objects if not self.shapes_are_empty(Shapes(objects=(shape,)))),
        )

    def branches(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> list[int]:
        value = schema[keyword]
        if not isinstance(value, list) or not value:
            raise SchemaRefusedError("its value must be a list of schemas, not empty", keyword, node.pointer)
        return [self.document.child(node, keyword, index) for index in range(len(value))]

    def all_of(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        result = ANYTHING
        for number in self.branches(node, schema, keyword):
            result = intersect_shapes(result, self.expand(number), self.budget, keyword, node.pointer)
        return result

    def any_of(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        result = NOTHING
        for number in self.branches(node, schema, keyword):
            result = unite_shapes(result, self.expand(number), self.budget, keyword, node.pointer)
        return result

    def one_of(self, node: Node, schema: dict[str, JsonValue], context: Shapes) -> Shapes:
        """Return, for each branch, its values of `context` that are in no other branch."""
        place = ("oneOf", node.pointer)
        parts = [self.expand(number) for number in self.branches(node, schema, "oneOf")]
        in_context = [
            self.without_empty(intersect_shapes(context, part, self.budget, *place)) if len(parts) > 1 else part
            for part in parts
        ]
        result = NOTHING
        for index, part in enumerate(in_context):
            for other_index, other in enumerate(in_context):
                if other_index == index or part.is_never or other.is_never:
                    continue
                part = fewer_objects(self.outside(part, parts[other_index], place), in_context[index])
            result = unite_shapes(result, part, self.budget, *place)
        return result

    def outside(self, part: Shapes, other: Shapes, place: tuple[str, str]) -> Shapes:
        """Return the values of `part` that are not in `other`; shapes without a common value stay as they are."""
        excluded = pieces_of(other)
        result = NOTHING
        for piece in pieces_of(part):
            left = piece
            for one in excluded:
                if left.is_never or self.are_apart(left, one, place):
                    continue
                tagged = self.tagged(left, one)
                if tagged is None:
                    complement = negate_shapes(one, self.budget, *place)
                    tagged = self.without_empty(intersect_shapes(left, complement, self.budget, *place))
                left = fewer_objects(tagged, piece)
            result = unite_shapes(result, left, self.budget, *place)
        return result

    def tagged(self, piece: Shapes, other: Shapes) -> Shapes | None:
        """Demand a property whose values tell objects from those of `other`; None if there is none in both."""
        if len(piece.objects) != 1 or not other.objects:
            return None
        (shape,), (rival,) = piece.objects, other.objects
        if isinstance(shape, Opaque) or isinstance(rival, Opaque):
            return None
        theirs = dict(rival.properties)
        for name, terms in shape.properties:
            values = terms, theirs.get(name, ANY)
            if self.is_empty(both(*values)) and not any(map(self.is_empty, values)):
                required = tuple(dict.fromkeys((*shape.required, name)))
                return replace(piece, objects=(replace(shape, required=required),), tightened=True)
        return None

    def are_apart(self, piece: Shapes, other: Shapes, place: tuple[str, str]) -> bool:
        """Tell whether surely no value is in both."""
        if piece.objects and all(
            self.are_told_apart(first, second, place) for first in piece.objects for second in other.objects
        ):
            return True
        return self.without_empty(intersect_shapes(piece, other, self.budget, *place)).is_never

    def are_told_apart(self, first: ObjectShape | Opaque, second: ObjectShape | Opaque, place: tuple[str, str]) -> bool:
        """Tell quickly whether a property that one of two shapes requires has no value in both."""
        if isinstance(first, Opaque) or isinstance(second, Opaque):
            return False
        ours, theirs = dict(first.properties), dict(second.properties)
        names = dict.fromkeys((*first.required, *second.required))
        self.budget.spend(1 + len(names), *place)
        return any(name in ours and name in theirs and self.is_empty(both(ours[name], theirs[name])) for name in names)

    def negation(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        inner = self.expand(self.document.child(node, keyword))
        return negate_shapes(inner, self.budget, keyword, node.pointer)

    def condition(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        if "then" not in schema and "else" not in schema:
            return ANYTHING
        test = self.expand(self.document.child(node, "if"))
        result = test
        if "then" in schema:
            then = self.expand(self.document.child(node, "then"))
            result = intersect_shapes(test, then, self.budget, keyword, node.pointer)
        otherwise = negate_shapes(test, self.budget, keyword, node.pointer)
        if "else" in schema:
            other = self.expand(self.document.child(node, "else"))
            otherwise = intersect_shapes(otherwise, other, self.budget, keyword, node.pointer)
        return unite_shapes(result, otherwise, self.budget, keyword, node.pointer)

    def reference(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        reference = schema[keyword]
        if not isinstance(reference, str):
            raise SchemaRefusedError("a reference must be a string", keyword, node.pointer)
        return self.expand(self.document.resolve(node, reference, keyword))

    def dynamic_reference(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        """Follow a dynamic reference where it has only one possible target."""
        reference = schema[keyword]
        if not isinstance(reference, str):
            raise SchemaRefusedError("a reference must be a string", keyword, node.pointer)
        fragment = reference.partition("#")[2]
        if keyword == "$recursiveRef" and self.document.has_recursive_anchor and len(self.document.resource_at) > 1:
            raise SchemaRefusedError("it has more than one possible target", keyword, node.pointer)
        if self.document.dynamic_anchors.get(fragment, 0) > 1:
            raise SchemaRefusedError("it has more than one possible target", keyword, node.pointer)
        return self.expand(self.document.resolve(node, reference, keyword))

    def dependencies(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        value = schema[keyword]
        if not isinstance(value, dict):
            raise SchemaRefusedError("its value must be an object", keyword, node.pointer)
        result = ANYTHING
        for name, demand in value.items():
            present = Shapes(objects=(ObjectShape(required=(name,), properties=((name, ANY),)),))
            if isinstance(demand, list) and keyword != "dependentSchemas":
                if not all(isinstance(item, str) for item in demand):
                    raise SchemaRefusedError("a dependency must be a list of names", keyword, node.pointer)
                names = tuple(dict.fromkeys((name, *(str(item) for item in demand))))
                properties = tuple((item, ANY) for item in names)
                present = Shapes(objects=(ObjectShape(properties=properties, required=names),))
            elif keyword != "dependentRequired":
                inner = self.expand(self.document.child(node, keyword, name))
                present = intersect_shapes(inner, present, self.budget, keyword, node.pointer)
            else:
                raise SchemaRefusedError("a dependency must be a list of names", keyword, node.pointer)
            absent = replace(ANYTHING, objects=(ObjectShape(properties=((name, NEVER),)),))
            either = unite_shapes(absent, present, self.budget, keyword, node.pointer)
            result = intersect_shapes(result, either, self.budget, keyword, node.pointer)
        # Later dialects have no `dependencies`: enforced all the same, so its complement is not known.
        return replace(result, tightened=result.tightened or (keyword == "dependencies" and node.dialect >= DRAFT_2019))

    def constant(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        value = schema[keyword]
        if keyword == "const":
            return shapes_of_value(value, node.pointer)
        if not isinstance(value, list):
            raise SchemaRefusedError("its value must be a list", keyword, node.pointer)
        self.budget.spend(len(value), keyword, node.pointer)
        return shapes_of_values(value, node.pointer)


def fewer_objects(shapes: Shapes, whole: Shapes) -> Shapes:
    """Return some of many shapes of objects, those that say the least of what the objects of `whole` are to have."""
    if len(shapes.objects) <= MAX_OUTSIDE:
        return shapes
    own = {name: terms for shape in whole.objects if isinstance(shape, ObjectShape) for name, terms in shape.properties}

    def num_changed(shape: ObjectShape | Opaque) -> int:
        if isinstance(shape, Opaque):
            return len(own) + 1
        return sum(own.get(name, terms) != terms for name, terms in shape.properties)

    return replace(shapes, objects=tuple(sorted(shapes.objects, key=num_changed)[:NUM_KEPT]), tightened=True)


def pieces_of(shapes: Shapes) -> list[Shapes]:
    """Return single shapes whose union is `shapes`."""
    pieces = [Shapes(null=True, tightened=shapes.tightened)] if shapes.null else []
    if shapes.booleans:
        pieces.append(Shapes(booleans=shapes.booleans, tightened=shapes.tightened))
    pieces += [Shapes(numbers=(shape,), tightened=shapes.tightened) for shape in shapes.numbers]
    pieces += [Shapes(strings=(shape,), tightened=shapes.tightened) for shape in shapes.strings]
    pieces += [Shapes(arrays=(shape,), tightened=shapes.tightened) for shape in shapes.arrays]
    return pieces + [Shapes(objects=(shape,), tightened=shapes.tightened) for shape in shapes.objects]


# Read after the others: the order of properties is that in which they are met, and branches are easier to tell apart
# when everything else is known.
LATE_KEYWORDS = {"oneOf": 1, "not": 2, "if": 2, "const": 2, "enum": 2}
LATE_KEYWORDS |= {"dependencies": 2, "dependentRequired": 2, "dependentSchemas": 2}
