"""From shapes to the schema for the backend: definitions for every conjunction that is reached, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from octavo.structured.json_schema.dialects import is_assertion
from octavo.structured.json_schema.errors import IndescribableError, SchemaRefusedError
from octavo.structured.json_schema.expand import Expander
from octavo.structured.json_schema.limits import MAX_BACKEND_DEPTH, MAX_DEFINITIONS
from octavo.structured.json_schema.lower_arrays import lower_array
from octavo.structured.json_schema.lower_objects import lower_object
from octavo.structured.json_schema.numbers import write_numbers
from octavo.structured.json_schema.places import Place, unique_places
from octavo.structured.json_schema.plans import ArrayPlan, ObjectPlan, Plan, ScalarPlan
from octavo.structured.json_schema.shapes import (
    ANY,
    ANYTHING,
    BOTH_BOOLEANS,
    NEVER,
    ArrayShape,
    Conjunction,
    ConstTerm,
    NumberShape,
    ObjectShape,
    Opaque,
    SchemaTerm,
    Shapes,
    StringShape,
    Term,
)
from octavo.structured.json_schema.strings import write_strings
from octavo.structured.json_schema.values import JsonValue

MAX_INLINE_DEPTH = 10

Key: TypeAlias = "frozenset[Term]"


@dataclass(slots=True)
class Definition:
    """One conjunction: its plans, how often others refer to it, and whether it has a value; refusal: what it lacks."""

    name: str
    terms: Conjunction
    plans: list[Plan] = field(default_factory=list)
    is_any: bool = False
    num_uses: int = 0
    has_values: bool = False
    refusal: IndescribableError | None = None


class Emitter:
    """Collects definitions from one conjunction on, and writes them."""

    def __init__(self, expander: Expander, *, close_objects: bool) -> None:
        self.expander = expander
        self.close_objects = close_objects
        self.definitions: dict[Key, Definition] = {}

    def emit(self, root: Conjunction) -> dict[str, JsonValue]:
        """Return the schema for the backend. Raises SchemaRefusedError."""
        self.collect(root)
        self.find_values()
        self.check_has_values(root)
        self.leave_out_empty()
        self.definitions[frozenset(root)].num_uses += 1
        self.check_depth(root)
        written: dict[str, JsonValue] = {}
        body = self.write(root, 0, written)
        todo = True
        while todo:
            todo = False
            for definition in list(self.definitions.values()):
                if definition.name in written and written[definition.name] is None:
                    written[definition.name] = self.write_definition(definition, 1, written)
                    todo = True
        result = dict(body) if isinstance(body, dict) else {}
        if written:
            result["$defs"] = written
        return result

    def unique_places(self, root: Conjunction) -> list[Place]:
        """Return where items must differ; to be asked after `emit`."""
        return unique_places({key: found.plans for key, found in self.definitions.items()}, frozenset(root))

    def collect(self, root: Conjunction) -> None:
        """Expand and lower everything that is reached from `root`."""
        todo = [root]
        while todo:
            terms = todo.pop()
            key = frozenset(terms)
            if terms == NEVER or key in self.definitions:
                continue
            definition = Definition(f"d{len(self.definitions)}", terms)
            self.definitions[key] = definition
            if len(self.definitions) > MAX_DEFINITIONS:
                raise SchemaRefusedError(f"it comes to more than {MAX_DEFINITIONS} definitions", "", "")
            shapes = self.expander.expand_terms(terms)
            definition.is_any = terms == ANY or (shapes == ANYTHING and not self.close_objects)
            if definition.is_any:
                continue
            definition.plans, definition.refusal = self.lower(terms, shapes)
            self.check_unique(definition)
            todo += reversed([inside for plan in definition.plans for inside in inside_of(plan)])

    def lower(self, terms: Conjunction, shapes: Shapes) -> tuple[list[Plan], IndescribableError | None]:
        """Return plans for the shapes of a conjunction, and why some are left out.

        These are the values that break a rule, and that no plan describes: of one for properties or items, or arrays
        and objects. They only matter if no others are left.
        """
        plans: list[Plan] = [ScalarPlan({"type": "null"})] if shapes.null else []
        if shapes.booleans:
            values: JsonValue = {"const": True in shapes.booleans}
            plans.append(ScalarPlan({"type": "boolean"} if shapes.booleans == BOTH_BOOLEANS else values))
        is_spare = any(isinstance(term, (SchemaTerm, ConstTerm)) and term.negated for term in terms)
        left_out: IndescribableError | None = None
        for shape in (*shapes.numbers, *shapes.strings, *shapes.arrays, *shapes.objects):
            try:
                plans += self.lower_shape(shape)
            except IndescribableError as error:
                if shape in shapes.numbers and not is_spare:
                    raise
                left_out = left_out or error
        return plans, left_out

    def lower_shape(self, shape: NumberShape | StringShape | ArrayShape | ObjectShape | Opaque) -> Sequence[Plan]:
        if isinstance(shape, Opaque):
            raise IndescribableError(shape.reason, shape.keyword, shape.pointer)
        if isinstance(shape, (NumberShape, StringShape)):
            schema = write_numbers(shape) if isinstance(shape, NumberShape) else write_strings(shape)
            return [] if schema is False else [ScalarPlan(schema)]
        if isinstance(shape, ArrayShape):
            return lower_array(shape, self.expander)
        return lower_object(shape, self.expander, closed=self.close_objects)

    def check_unique(self, definition: Definition) -> None:
        """Refuse arrays of which some must differ in their items, while others may have to repeat one."""
        arrays = [plan for plan in definition.plans if isinstance(plan, ArrayPlan)]
        if any(plan.unique for plan in arrays) and any(not plan.unique and plan.low > 1 for plan in arrays):
            raise SchemaRefusedError(
                "it stands beside an alternative for arrays of several items that need not differ",
                "uniqueItems",
                self.pointer_of(definition.terms),
            )

    def find_values(self) -> None:
        """Mark the definitions that have a value: those that need, in some plan, only marked ones."""
        users: dict[Key, list[Definition]] = {}
        todo = []
        for definition in self.definitions.values():
            if definition.is_any or any(not needed_of(plan) for plan in definition.plans):
                definition.has_values = True
                todo.append(definition)
            for plan in definition.plans:
                for terms in inside_of(plan):
                    if terms != NEVER:
                        users.setdefault(frozenset(terms), []).append(definition)
        while todo:
            for user in users.get(frozenset(todo.pop().terms), ()):
                if not user.has_values and any(self.is_possible(plan) for plan in user.plans):
                    user.has_values = True
                    todo.append(user)

    def leave_out_empty(self) -> None:
        """Drop the plans without values, and count the references in the others."""
        for definition in self.definitions.values():
            definition.plans = [plan for plan in definition.plans if self.is_possible(plan)]
            for plan in definition.plans:
                for terms in inside_of(plan):
                    if terms != NEVER:
                        self.definitions[frozenset(terms)].num_uses += 1

    def check_has_values(self, root: Conjunction) -> None:
        """Raise SchemaRefusedError at the innermost place that must have a value and has none."""
        terms, seen = root, set()
        while terms not in seen:
            seen.add(terms)
            definition = self.definitions.get(frozenset(terms))
            if definition is not None and definition.has_values:
                return
            lacking = [
                needed
                for plan in (definition.plans if definition is not None else ())
                for needed in needed_of(plan)
                if needed == NEVER or not self.definitions[frozenset(needed)].has_values
            ]
            if not lacking or lacking[0] == NEVER:
                if definition is not None and definition.refusal is not None:
                    raise definition.refusal
                break
            terms = lacking[0]
        raise SchemaRefusedError("no value satisfies it", self.keywords_of(terms), self.pointer_of(terms))

    def is_possible(self, plan: Plan) -> bool:
        return all(terms != NEVER and self.definitions[frozenset(terms)].has_values for terms in needed_of(plan))

    def check_depth(self, root: Conjunction) -> None:
        """Refuse what would overflow the backend's stack: it follows references depth first, each once."""
        seen = {frozenset(root)}
        stack = [iter(self.successors(root))]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
            elif frozenset(following) not in seen:
                seen.add(frozenset(following))
                stack.append(iter(self.successors(following)))
                if len(stack) > MAX_BACKEND_DEPTH:
                    raise SchemaRefusedError(
                        f"values nest deeper than {MAX_BACKEND_DEPTH} levels", "", self.pointer_of(following)
                    )

    def successors(self, terms: Conjunction) -> list[Conjunction]:
        plans = self.definitions[frozenset(terms)].plans
        return [inside for plan in plans for inside in inside_of(plan) if inside != NEVER]

    def pointer_of(self, terms: Conjunction) -> str:
        numbers = [term.number for term in terms if isinstance(term, SchemaTerm)]
        return self.expander.document.nodes[numbers[0]].pointer if numbers else ""

    def keywords_of(self, terms: Conjunction) -> str:
        """Return the keywords that a conjunction's schemas assert, for an error."""
        nodes = [self.expander.document.nodes[term.number] for term in terms if isinstance(term, SchemaTerm)]
        said = [
            key
            for node in nodes
            if isinstance(node.schema, dict)
            for key in node.schema
            if is_assertion(key, node.dialect)
        ]
        return ", ".join(dict.fromkeys(said))

    def write(self, terms: Conjunction, depth: int, written: dict[str, JsonValue]) -> JsonValue:
        """Return a conjunction in place, or a reference to its definition, which is noted in `written`."""
        if terms == NEVER:
            return False
        definition = self.definitions[frozenset(terms)]
        if not definition.has_values:
            return False
        is_scalar = all(isinstance(plan, ScalarPlan) for plan in definition.plans)
        is_const = len(terms) == 1 and isinstance(terms[0], ConstTerm)
        if definition.is_any:
            return {}
        if (
            is_const
            or (is_scalar and len(definition.plans) < 8)
            or (definition.num_uses <= 1 and depth < MAX_INLINE_DEPTH)
        ):
            return self.write_definition(definition, depth, written)
        written.setdefault(definition.name, None)
        return {"$ref": f"#/$defs/{definition.name}"}

    def write_definition(self, definition: Definition, depth: int, written: dict[str, JsonValue]) -> JsonValue:
        parts = [self.write_plan(plan, depth + 1, written) for plan in definition.plans]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def write_plan(self, plan: Plan, depth: int, written: dict[str, JsonValue]) -> JsonValue:
        if isinstance(plan, ScalarPlan):
            return plan.schema
        if isinstance(plan, ArrayPlan):
            schema: dict[str, JsonValue] = {"type": "array"}
            if plan.prefix:
                schema["prefixItems"] = [self.write(terms, depth, written) for terms in plan.prefix]
            schema["items"] = self.write(plan.items, depth, written)
            if plan.low:
                schema["minItems"] = plan.low
            if plan.high is not None:
                schema["maxItems"] = plan.high
            return schema
        assert isinstance(plan, ObjectPlan)
        schema = {"type": "object"}
        schema["properties"] = {name: self.write(terms, depth, written) for name, terms in plan.properties}
        if plan.patterns:
            schema["patternProperties"] = {
                pattern: self.write(terms, depth, written) for pattern, terms in plan.patterns
            }
        schema["additionalProperties"] = self.write(plan.rest, depth, written)
        if plan.required:
            schema["required"] = list(plan.required)
        if plan.low:
            schema["minProperties"] = plan.low
        if plan.high is not None:
            schema["maxProperties"] = plan.high
        return schema


def inside_of(plan: Plan) -> list[Conjunction]:
    return [] if isinstance(plan, ScalarPlan) else plan.inside()


def needed_of(plan: Plan) -> list[Conjunction]:
    return [] if isinstance(plan, ScalarPlan) else plan.needed()
