"""Calls as tags, a tag for each parameter with its plain text inside; the tool's schema gives the text its type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, json_string, json_string_part
from octavo.parsing.reader import MalformedCallError, Steps, Stops
from octavo.parsing.schema_types import ANY_TYPE, ONLY_STRING, json_of_text, parameter_types

_TEXT_OR_NULL = frozenset({"string", "null"})
_MAX_NULL = 64  # characters in which a null with white space around it is recognised
_NO_NAME = re.compile(r"[<>\n]")


@dataclass(frozen=True, slots=True)
class XmlCalls(CallBody):
    """`<function=name><parameter=key>value</parameter></function>`, and its relatives.

    before_name, after_name: around the function's name; an end that also begins a parameter or ends the call is only
        looked at
    before_key, after_key: around a parameter's name
    before_value: what stands between the two tags of a parameter, where it has two
    string_marks: (mark for strings, mark for JSON) that may end a parameter's tag in the place of its plain end
    after_value: ends a parameter
    after_call: ends the call, the usual end first; it may be missing before the format's own end
    is_padded: values stand on lines of their own
    undeclared: types of parameters that the tool's schema does not know
    """

    before_name: str
    after_name: tuple[str, ...]
    before_key: str
    after_key: str
    after_value: str
    after_call: tuple[str, ...] = ()
    before_value: str = ""
    string_marks: tuple[str, str] | None = None
    is_padded: bool = False
    undeclared: frozenset[str] = ONLY_STRING

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.before_name, self.before_key, self.after_key, self.before_value, self.after_value)

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.before_name,) if self.before_name else ()

    def read(self, context: CallContext) -> Steps[None]:
        reader, writer = context.reader, context.writer
        if self.before_name:
            yield from reader.expect(self.before_name)
        text, end = yield from reader.short_text(Stops(self.after_name), MAX_KEY_CHARACTERS)
        name = text.strip()
        if not context.may_call(name) or _NO_NAME.search(name):
            raise MalformedCallError
        if end not in (self.before_key, *self.after_call):
            reader.take(reader.at + len(end))
        writer.start_call(name)
        has_parameters = False
        while True:
            yield from reader.skip_space()
            if (yield from reader.accept((self.before_key,))) is None:
                break
            yield from self._read_parameter(context, name, "," if has_parameters else "{")
            has_parameters = True
        if (yield from reader.peek(self.after_call)) is None:
            raise MalformedCallError
        writer.arguments("}" if has_parameters else "{}")
        writer.end_call()
        yield from reader.accept(self.after_call[:1])

    def _read_parameter(self, context: CallContext, name: str, before: str) -> Steps[None]:
        """Read a parameter behind the marker that begins it."""
        reader, writer = context.reader, context.writer
        ends = (self.after_key,) if self.string_marks is None else (*self.string_marks, self.after_key)
        text, end = yield from reader.short_text(Stops(ends), MAX_KEY_CHARACTERS)
        reader.take(reader.at + len(end))
        key = text.strip()
        if not key or _NO_NAME.search(key):
            raise MalformedCallError
        if self.before_value:
            yield from reader.skip_space()
            yield from reader.expect(self.before_value)
        types = parameter_types(context.tools.get(name), key, self.undeclared)
        if self.string_marks and end in self.string_marks:
            types = ONLY_STRING if end == self.string_marks[0] else ANY_TYPE
        writer.arguments(f"{before}{' ' if before == ',' else ''}{json_string(key)}: ")
        if self.is_padded:
            yield from reader.accept(("\n",))
        if types == ONLY_STRING:
            yield from self._read_text(context)
        else:
            yield from self._read_typed(context, types)

    def _value_stops(self) -> Stops:
        return Stops((f"\n{self.after_value}", self.after_value) if self.is_padded else (self.after_value,))

    def _read_text(self, context: CallContext) -> Steps[None]:
        """Pass a string on while it arrives."""
        writer = context.writer

        def emit(text: str) -> None:
            writer.arguments(json_string_part(text))

        writer.arguments('"')
        end = yield from context.reader.until(self._value_stops(), emit)
        if end is None:
            raise MalformedCallError
        context.reader.take(context.reader.at + len(end))
        writer.arguments('"')

    def _read_typed(self, context: CallContext, types: frozenset[str]) -> Steps[None]:
        """Pass a value on once it is whole; if it never is, as it was written. Text that turns out not null streams."""
        reader, writer = context.reader, context.writer
        parts: list[str] = []
        num_held = 0
        is_text = False

        def emit(text: str) -> None:
            nonlocal num_held, is_text
            if is_text:
                writer.arguments(json_string_part(text))
                return
            parts.append(text)
            num_held += len(text)
            if types == _TEXT_OR_NULL and (num_held > _MAX_NULL or len("".join(parts).strip()) > len("null")):
                is_text = True
                writer.arguments(f'"{json_string_part("".join(parts))}')

        end = yield from reader.until(self._value_stops(), emit)
        if end is None:
            writer.arguments("" if is_text else "".join(parts))
            raise MalformedCallError
        reader.take(reader.at + len(end))
        writer.arguments('"' if is_text else json_of_text("".join(parts), types))
