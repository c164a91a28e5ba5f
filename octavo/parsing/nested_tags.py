"""Calls as tags all the way down, `<invoke name="f"><key><item>1</item></key></invoke>`, each behind a mark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, json_string, json_string_part
from octavo.parsing.reader import Emit, MalformedCallError, Reader, Steps, Stops
from octavo.parsing.schema_types import ANY_TYPE, ONLY_STRING, json_of_text, member_schema, types_of

_ITEM = "item"
_MAX_NESTING = 40
_NO_KEY = re.compile(r"[\s<>/\"]")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NestedTags(CallBody):
    """A parameter is a tag of its name, objects hold tags of their keys, and arrays tags called item.

    mark: what stands before every tag; text holds none
    Text has the type that the tool's schema gives to its place.
    """

    mark: str

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.mark,)

    @property
    def starts(self) -> tuple[str, ...]:
        return (f'{self.mark}<invoke name="',)

    def read(self, context: CallContext) -> Steps[None]:
        reader, writer = context.reader, context.writer
        yield from reader.expect(self.starts[0])
        name, _ = yield from reader.short_text(Stops(('">',)), MAX_KEY_CHARACTERS)
        reader.take(reader.at + len('">'))
        if not context.may_call(name):
            raise MalformedCallError
        tool = context.tools.get(name)
        schema = (tool.parameters if tool else None) or {}
        writer.start_call(name)
        yield from reader.skip_space()
        yield from self._read_members(reader, writer.arguments, schema, schema, "invoke", _MAX_NESTING)
        writer.end_call()

    def _read_members(
        self, reader: Reader, emit: Emit, schema: Schema, root: Schema, closing: str, depth: int
    ) -> Steps[None]:
        """Read the tags up to the one that closes them, which is consumed, as an object or an array."""
        if depth == 0:
            raise MalformedCallError
        is_array: bool | None = None
        end = f"{self.mark}</{closing}>"
        while (yield from reader.accept((end,))) is None:
            yield from reader.expect(f"{self.mark}<")
            key, _ = yield from reader.short_text(Stops((">",)), MAX_KEY_CHARACTERS)
            reader.take(reader.at + 1)
            if not key or _NO_KEY.search(key):
                raise MalformedCallError
            if is_array is None:
                is_array = closing != "invoke" and (key == _ITEM or types_of(schema, root) == {"array"})
                emit("[" if is_array else "{")
            else:
                emit(", ")
            if not is_array:
                emit(f"{json_string(key)}: ")
            member = member_schema(schema, None if is_array else key, root)
            yield from self._read_value(reader, emit, member, root, key, depth - 1)
            yield from reader.skip_space()
        emit("{}" if is_array is None else "]" if is_array else "}")

    def _read_value(
        self, reader: Reader, emit: Emit, schema: Schema, root: Schema, key: str, depth: int
    ) -> Steps[None]:
        """Read what stands between the tags of a key, and the closing one."""
        types, mark = types_of(schema, root) or ANY_TYPE, Stops((self.mark,))
        if types == ONLY_STRING:
            emit('"')
            found = yield from reader.until(mark, lambda text: emit(json_string_part(text)))
            emit('"' if found else "")
            yield from reader.expect(f"{self.mark}</{key}>")
            return
        parts: list[str] = []
        found = yield from reader.until(mark, parts.append)
        text = "".join(parts)
        if found is None:
            emit(text)
            raise MalformedCallError
        end = f"{self.mark}</{key}>"
        if not text.strip() and (yield from reader.peek((end,))) is None:
            yield from self._read_members(reader, emit, schema, root, key, depth)
            return
        emit(json_of_text(text, types) if text.strip() or "string" in types else _empty(types))
        yield from reader.expect(end)


def _empty(types: frozenset[str]) -> str:
    """Return what no text is, of types that are no strings."""
    return "[]" if "array" in types else "{}" if "object" in types else "null" if "null" in types else '""'
