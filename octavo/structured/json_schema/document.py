"""A schema as a document: which dialect each part is in, and what a reference points to."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urldefrag, urljoin

from octavo.structured.json_schema.dialects import (
    DIALECTS,
    DRAFT_4,
    DRAFT_7,
    DRAFT_2019,
    DRAFT_2020,
    REFUSED_DIALECTS,
)
from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.values import JsonValue, escape_pointer

# Keywords whose value is a schema, a list of schemas, or an object of schemas; in any dialect.
SCHEMA_KEYWORDS = frozenset(
    ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not")
) | {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
SCHEMA_LIST_KEYWORDS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
SCHEMA_MAP_KEYWORDS = frozenset(
    ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
)


@dataclass(frozen=True, slots=True)
class Node:
    """One schema of the document: an object or a boolean, with what its place decides."""

    schema: JsonValue
    pointer: str
    dialect: int
    base: str  # URI of the resource that it belongs to


class Document:
    """All schemas of one document, found by JSON pointer, identifier or anchor."""

    def __init__(self, root: JsonValue) -> None:
        self.root = root
        self.nodes: list[Node] = []
        self.number_at: dict[str, int] = {}
        self.resource_at: dict[str, str] = {"": ""}  # URI -> pointer of the resource's root
        self.anchor_at: dict[tuple[str, str], str] = {}  # (resource URI, anchor) -> pointer
        self.dynamic_anchors: dict[str, int] = {}  # name -> how many resources have it
        self.has_recursive_anchor = False
        self.index()

    def index(self) -> None:
        """Visit every schema that a keyword holds, outermost first."""
        todo: list[tuple[JsonValue, str, int, str]] = [(self.root, "", DRAFT_2020, "")]
        while todo:
            schema, pointer, dialect, base = todo.pop()
            if pointer in self.number_at:
                continue
            node = self.add(schema, pointer, dialect, base)
            if not isinstance(schema, dict) or ("$ref" in schema and node.dialect <= DRAFT_7 and pointer):
                continue  # siblings of a reference do not count there
            for keyword, value in schema.items():
                place = f"{pointer}/{escape_pointer(keyword)}"
                if keyword in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                    children = [(item, f"{place}/{escape_pointer(name)}") for name, item in value.items()]
                elif keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                    children = [(item, f"{place}/{index}") for index, item in enumerate(value)]
                elif keyword in SCHEMA_KEYWORDS:
                    children = [(value, place)]
                else:
                    continue
                todo += [
                    (item, where, node.dialect, node.base) for item, where in children if isinstance(item, (dict, bool))
                ]

    def add(self, schema: JsonValue, pointer: str, dialect: int, base: str) -> Node:
        """Register one schema with the dialect and base URI of its surroundings."""
        if isinstance(schema, dict):
            dialect = dialect_of(schema, dialect, pointer)
            base = self.register_names(schema, pointer, dialect, base)
        node = Node(schema, pointer, dialect, base)
        self.number_at[pointer] = len(self.nodes)
        self.nodes.append(node)
        return node

    def register_names(self, schema: dict[str, JsonValue], pointer: str, dialect: int, base: str) -> str:
        """Note the identifier and the anchors of a schema; return the base URI inside it."""
        identifier = schema.get("id" if dialect == DRAFT_4 else "$id")
        if isinstance(identifier, str) and not ("$ref" in schema and dialect <= DRAFT_7):
            uri, fragment = urldefrag(join_uri(base, identifier))
            if fragment and dialect <= DRAFT_7:
                self.anchor_at.setdefault((base if identifier.startswith("#") else uri, fragment), pointer)
            if not identifier.startswith("#") and uri:
                base = uri
                self.resource_at.setdefault(uri, pointer)
        if dialect >= DRAFT_2019:
            anchor = schema.get("$anchor")
            if isinstance(anchor, str):
                self.anchor_at.setdefault((base, anchor), pointer)
            dynamic = schema.get("$dynamicAnchor")
            if isinstance(dynamic, str):
                self.anchor_at.setdefault((base, dynamic), pointer)
                self.dynamic_anchors[dynamic] = self.dynamic_anchors.get(dynamic, 0) + 1
            self.has_recursive_anchor |= schema.get("$recursiveAnchor") is True
        return base

    def child(self, parent: Node, *steps: str | int) -> int:
        """Return the number of the schema that lies `steps` below `parent`."""
        pointer = parent.pointer + "".join(f"/{escape_pointer(str(step))}" for step in steps)
        number = self.number_at.get(pointer)
        if number is not None:
            return number
        schema: JsonValue = parent.schema
        for step in steps:
            schema = schema[step]  # type: ignore[index]
        keyword = str(steps[0])
        if not isinstance(schema, (dict, bool)):
            raise SchemaRefusedError("a schema must be an object or a boolean", keyword, parent.pointer)
        self.add(schema, pointer, parent.dialect, parent.base)
        return self.number_at[pointer]

    def resolve(self, node: Node, reference: str, keyword: str) -> int:
        """Return the number of the schema that a reference in `node` points to. Raises SchemaRefusedError."""
        uri, fragment = urldefrag(join_uri(node.base, reference))
        fragment = unquote(fragment)
        place = self.resource_at.get(uri)
        if place is None and uri == node.base:
            place = ""
        if place is None:
            raise SchemaRefusedError(
                f"{reference!r} is outside of the schema, and nothing is fetched; put the definition into $defs",
                keyword,
                node.pointer,
            )
        if fragment and not fragment.startswith("/"):
            anchored = self.anchor_at.get((uri, fragment))
            if anchored is None:
                raise SchemaRefusedError(f"no schema has the anchor {fragment!r}", keyword, node.pointer)
            return self.number_at[anchored]
        return self.at_pointer(node, self.nodes[self.number_at[place]], fragment, keyword)

    def at_pointer(self, source: Node, resource: Node, fragment: str, keyword: str) -> int:
        """Follow a JSON pointer from the root of a resource, also through places that hold no schema by themselves."""
        number = self.number_at.get(resource.pointer + fragment)
        if number is not None:
            return number
        value, nearest, pointer = resource.schema, resource, resource.pointer
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise SchemaRefusedError(f"the reference {'#' + fragment!r} leads nowhere", keyword, source.pointer)
            pointer += f"/{step}"
            number = self.number_at.get(pointer)
            nearest = nearest if number is None else self.nodes[number]
        if not isinstance(value, (dict, bool)):
            raise SchemaRefusedError(f"the reference {'#' + fragment!r} leads to no schema", keyword, source.pointer)
        self.add(value, pointer, nearest.dialect, nearest.base)
        return self.number_at[pointer]


def dialect_of(schema: dict[str, JsonValue], inherited: int, pointer: str) -> int:
    """Return the dialect that `$schema` names; an unknown address does not change it."""
    address = schema.get("$schema")
    if not isinstance(address, str):
        return inherited
    address = address[:-1] if address.endswith("#") else address
    if address in REFUSED_DIALECTS:
        raise SchemaRefusedError(
            f"{REFUSED_DIALECTS[address]} is not supported; use draft 4 or later", "$schema", pointer
        )
    return DIALECTS.get(address, inherited)


def join_uri(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    return urljoin(base, reference)
