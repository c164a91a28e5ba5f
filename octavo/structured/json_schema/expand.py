"""Keywords to shapes: the meaning of one schema object, with everything that applies to the same value worked in.

`Expander.expand` goes through allOf, anyOf, oneOf, not, if, $ref and dependencies, and stops at what is inside of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.structured.json_schema.document import DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020, Document, Node
from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.intersect import intersect_shapes, unite_shapes
from octavo.structured.json_schema.keywords import (
    OWN_KEYWORDS,
    KeywordReader,
    is_trivial,
    shapes_of_value,
    shapes_of_values,
)
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
    NameRules,
    ObjectShape,
    Opaque,
    SchemaTerm,
    Shapes,
    Term,
)
from octavo.structured.json_schema.values import JsonValue

MAX_PROBE_DEPTH = 3


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
            "oneOf": self.one_of,
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
        for keyword in sorted(schema, key=lambda name: name in LATE_KEYWORDS):
            if keyword in OWN_KEYWORDS and not own_done:
                own_done = True
                reader = KeywordReader(self.document, node, self.conjunction_of)
                part = reader.own_shapes()
            elif keyword in self.applicators and is_in_dialect(keyword, node.dialect):
                part = self.applicators[keyword](node, schema, keyword)
            else:
                continue
            result = intersect_shapes(result, part, self.budget, keyword, node.pointer)
        if node.dialect >= DRAFT_2019:
            result = self.unevaluated(node, schema, result)
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
        self.probe_depth += 1
        try:
            shapes = self.expand_terms(terms)
            self.empty[key] = self.shapes_are_empty(shapes)
            return self.empty[key]
        except (BusyError, SchemaRefusedError):
            return False
        finally:
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

    def one_of(self, node: Node, schema: dict[str, JsonValue], keyword: str) -> Shapes:
        """Return, for each branch, its values that are in no other one."""
        parts = [self.expand(number) for number in self.branches(node, schema, keyword)]
        result = NOTHING
        for index, part in enumerate(parts):
            for other_index, other in enumerate(parts):
                if other_index == index:
                    continue
                overlap = self.without_empty(intersect_shapes(part, other, self.budget, keyword, node.pointer))
                if overlap.is_never:
                    continue
                complement = negate_shapes(other, self.budget, keyword, node.pointer)
                part = self.without_empty(intersect_shapes(part, complement, self.budget, keyword, node.pointer))
            result = unite_shapes(result, part, self.budget, keyword, node.pointer)
        return result

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

    def unevaluated(self, node: Node, schema: dict[str, JsonValue], shapes: Shapes) -> Shapes:
        """Apply unevaluatedProperties and unevaluatedItems: each alternative counts what its own branches have looked at."""
        if "unevaluatedItems" in schema:
            terms = self.conjunction_of(self.document.child(node, "unevaluatedItems"))
            arrays: list[ArrayShape | Opaque] = []
            for array in shapes.arrays:
                if isinstance(array, ArrayShape) and array.num_evaluated is not None:
                    rest = Shapes(arrays=(ArrayShape(prefix=(ANY,) * array.num_evaluated, items=terms),))
                    met = intersect_shapes(Shapes(arrays=(array,)), rest, self.budget, "unevaluatedItems", node.pointer)
                    arrays += [
                        replace(shape, num_evaluated=None) for shape in met.arrays if isinstance(shape, ArrayShape)
                    ]
                else:
                    arrays.append(array)
            shapes = replace(shapes, arrays=tuple(arrays), tightened=shapes.tightened or terms != ANY)
        if "unevaluatedProperties" in schema:
            terms = self.conjunction_of(self.document.child(node, "unevaluatedProperties"))
            objects: list[ObjectShape | Opaque] = []
            for thing in shapes.objects:
                if isinstance(thing, ObjectShape) and not thing.evaluated.everything:
                    seen = thing.evaluated
                    rules = NameRules(tuple((pattern, ANY) for pattern in sorted(seen.patterns)), terms)
                    closed = ObjectShape(tuple((name, ANY) for name in sorted(seen.names)), (rules,))
                    met = intersect_shapes(
                        Shapes(objects=(thing,)),
                        Shapes(objects=(closed,)),
                        self.budget,
                        "unevaluatedProperties",
                        node.pointer,
                    )
                    for shape in met.objects:
                        assert isinstance(shape, ObjectShape)
                        objects.append(replace(shape, evaluated=replace(seen, everything=True)))
                else:
                    objects.append(thing)
            shapes = replace(shapes, objects=tuple(objects), tightened=shapes.tightened or terms != ANY)
        return shapes


# Read last, since the order of properties is that in which they are met.
LATE_KEYWORDS = frozenset(("dependencies", "dependentRequired", "dependentSchemas", "if", "not", "const", "enum"))
FIRST_DIALECT = {"const": DRAFT_6, "if": DRAFT_7, "dependentRequired": DRAFT_2019, "dependentSchemas": DRAFT_2019}
FIRST_DIALECT |= {"$dynamicRef": DRAFT_2020, "$recursiveRef": DRAFT_2019, "unevaluatedItems": DRAFT_2019}
FIRST_DIALECT |= {"unevaluatedProperties": DRAFT_2019, "contains": DRAFT_6, "propertyNames": DRAFT_6}
FIRST_DIALECT |= {"minContains": DRAFT_2019, "maxContains": DRAFT_2019, "prefixItems": DRAFT_2020}
APPLICATORS = frozenset(
    "allOf anyOf oneOf not if $ref $dynamicRef $recursiveRef dependencies dependentRequired dependentSchemas const enum "
    "unevaluatedItems unevaluatedProperties".split()
)


def is_in_dialect(keyword: str, dialect: int) -> bool:
    return FIRST_DIALECT.get(keyword, DRAFT_4) <= dialect and not (keyword == "$recursiveRef" and dialect > DRAFT_2019)


def is_assertion(keyword: str, dialect: int) -> bool:
    return keyword in OWN_KEYWORDS or (keyword in APPLICATORS and is_in_dialect(keyword, dialect))
