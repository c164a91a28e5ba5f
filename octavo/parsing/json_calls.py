"""Calls as JSON objects with a name and arguments: alone, in a row, or in an array."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import decode_string, read_raw_string, read_string, read_value
from octavo.parsing.reader import MalformedCallError, Steps

NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class JsonCalls(CallBody):
    """`{"name": ..., "arguments": {...}}`, or an array of such objects.

    names, arguments: keys that hold them, in any order; a key `function` may hold an object with both.
    Arguments are passed on as they are written. Missing and null ones are `{}`; arguments in a string that holds an
    object, as some models write them, are that object.
    """

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    others: tuple[str, ...] = ("id", "type", "index", "tool_call_id")

    @property
    def starts(self) -> tuple[str, ...]:
        return ("{",)

    def read(self, context: CallContext) -> Steps[None]:
        reader = context.reader
        if (yield from reader.accept(("[",))) is None:
            yield from self._read_call(context)
            return
        while True:
            yield from reader.skip_space()
            yield from self._read_call(context)
            yield from reader.skip_space()
            if (yield from reader.accept((",",))) is None:
                break
        yield from reader.expect("]")

    def _read_call(self, context: CallContext) -> Steps[None]:
        fields = _Fields()
        yield from self._read_object(context, fields, is_nested=False)
        fields.finish(context)

    def _read_object(self, context: CallContext, fields: _Fields, *, is_nested: bool) -> Steps[None]:
        reader = context.reader
        yield from reader.expect("{")
        yield from reader.skip_space()
        if (yield from reader.accept(("}",))) is not None:
            return
        while True:
            yield from reader.skip_space()
            key = yield from read_string(reader)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            yield from self._read_member(context, fields, key, is_nested=is_nested)
            yield from reader.skip_space()
            if (yield from reader.accept((",",))) is None:
                break
        yield from reader.expect("}")

    def _read_member(self, context: CallContext, fields: _Fields, key: str, *, is_nested: bool) -> Steps[None]:
        reader = context.reader
        first = yield from reader.character()
        if key in self.names and first == '"' and not fields.is_started:
            fields.name = yield from read_string(reader)
            if not context.may_call(fields.name):
                raise MalformedCallError
        elif key in self.arguments and not fields.has_arguments:
            yield from self._read_arguments(context, fields, first)
        elif key == "function" and first == "{" and not is_nested:
            yield from self._read_object(context, fields, is_nested=True)
        elif context.is_bare and key not in self.others and not fields.is_started:
            raise MalformedCallError
        else:
            yield from read_value(reader, _drop)

    def _read_arguments(self, context: CallContext, fields: _Fields, first: str) -> Steps[None]:
        reader = context.reader
        fields.has_arguments = True
        if first in "{[" and fields.name is not None:
            fields.start(context)
            yield from read_value(reader, context.writer.arguments)
            context.writer.end_call()
            return
        parts: list[str] = []
        yield from (read_raw_string if first == '"' else read_value)(reader, parts.append)
        fields.held_arguments = _as_object("".join(parts))


class _Fields:
    """What is known of a call while its object is read."""

    __slots__ = ("has_arguments", "held_arguments", "is_started", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_arguments = False
        self.held_arguments: str | None = None  # whole, but not written yet
        self.is_started = False

    def start(self, context: CallContext) -> None:
        assert self.name is not None
        self.is_started = True
        context.writer.start_call(self.name)

    def finish(self, context: CallContext) -> None:
        """Write what could not be written on the way: the object has ended."""
        if self.is_started:
            return
        if self.name is None or (context.is_bare and not self.has_arguments):
            raise MalformedCallError
        self.start(context)
        context.writer.arguments(self.held_arguments or NO_ARGUMENTS)
        context.writer.end_call()


def _as_object(raw: str) -> str:
    """Return arguments that are not written as an object as the object that they stand for, where there is one."""
    if raw == "null":
        return NO_ARGUMENTS
    if not raw.startswith('"'):
        return raw
    inner = decode_string(raw).strip()
    if not inner:
        return NO_ARGUMENTS
    return inner if inner.startswith("{") else raw


def _drop(_: str) -> None:
    """Read over a value that calls do not need."""
