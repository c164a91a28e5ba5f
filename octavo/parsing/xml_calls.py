"""Calls as tags, a tag for each parameter with its plain text inside; the tool's schema gives the text its type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, json_string, json_string_part
from octavo.parsing.reader import MalformedCallError, Reader, Steps, Stops
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
    name_rest: ends the tag of the name, where more than the name stands in it
    before_type, after_type: around the type of a parameter, which may be missing
    before_value: what stands between the two tags of a parameter, where it has two
    typed_keys: what may end a parameter's tag in the place of its plain end, and the types that it tells of
    after_value: ends a parameter
    before_quoted, after_quoted: around a value that may hold anything else
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
    name_rest: str = ""
    before_type: str = ""
    after_type: str = ""
    before_value: str = ""
    typed_keys: tuple[tuple[str, frozenset[str]], ...] = ()
    before_quoted: str = ""
    after_quoted: str = ""
    is_padded: bool = False
    undeclared: frozenset[str] = ONLY_STRING

    @property
    def literals(self) -> tuple[str, ...]:
        around_values = (self.before_type, self.after_type, self.before_value, self.after_value, self.before_quoted)
        return (self.before_name, *self.after_name, self.before_key, self.after_key, *around_values, *self.after_call)

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
        if self.name_rest:
            yield from reader.short_text(Stops((self.name_rest,)), MAX_KEY_CHARACTERS)
            reader.take(reader.at + len(self.name_rest))
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
        told = dict(self.typed_keys)
        text, end = yield from reader.short_text(Stops((*told, self.after_key)), MAX_KEY_CHARACTERS)
        reader.take(reader.at + len(end))
        key = text.strip()
        if not key or _NO_NAME.search(key):
            raise MalformedCallError
        undeclared = (yield from self._read_type(reader)) if self.before_type else self.undeclared
        if self.before_value:
            yield from reader.skip_space()
            yield from reader.expect(self.before_value)
        types = told.get(end) or parameter_types(context.tools.get(name), key, undeclared)
        writer.arguments(f"{before}{' ' if before == ',' else ''}{json_string(key)}: ")
        stops = Stops((f"\n{self.after_value}", self.after_value) if self.is_padded else (self.after_value,))
        if self.is_padded:
            yield from reader.accept(("\n",))
        elif self.before_quoted and (yield from reader.accept((self.before_quoted,))):
            stops = Stops((f"{self.after_quoted}{self.after_value}",))
        yield from self._read_text(context, stops) if types == ONLY_STRING else self._read_typed(context, stops, types)

    def _read_type(self, reader: Reader) -> Steps[frozenset[str]]:
        """Read the type that a parameter tells of itself, such as `array[string]`."""
        yield from reader.skip_space()
        if (yield from reader.accept((self.before_type,))) is None:
            return self.undeclared
        text, end = yield from reader.short_text(Stops((self.after_type,)), MAX_KEY_CHARACTERS)
        reader.take(reader.at + len(end))
        return ANY_TYPE & {text.partition("[")[0].strip().lower()} or self.undeclared

    def _read_text(self, context: CallContext, stops: Stops) -> Steps[None]:
        """Pass a string on while it arrives."""
        writer = context.writer

        def emit(text: str) -> None:
            writer.arguments(json_string_part(text))

        writer.arguments('"')
        end = yield from context.reader.until(stops, emit)
        if end is None:
            raise MalformedCallError
        context.reader.take(context.reader.at + len(end))
        writer.arguments('"')

    def _read_typed(self, context: CallContext, stops: Stops, types: frozenset[str]) -> Steps[None]:
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

        end = yield from reader.until(stops, emit)
        if end is None:
            writer.arguments("" if is_text else "".join(parts))
            raise MalformedCallError
        reader.take(reader.at + len(end))
        writer.arguments('"' if is_text else json_of_text("".join(parts), types))
