"""Calls as FunctionGemma and Gemma 4 write them: `call:name{key:<escape>text<escape>,other:5}`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, json_string, json_string_part, read_items
from octavo.parsing.reader import Emit, MalformedCallError, Reader, Steps, Stops
from octavo.parsing.schema_types import ANY_TYPE, json_of_text

_NAME = re.compile(r"[^\s{}\[\],:<]*")
_BARE = re.compile(r"[^,{}\[\]]*")
_MAX_BARE_CHARACTERS = 8192
_MAX_NESTING = 40


@dataclass(frozen=True, slots=True)
class BraceCalls(CallBody):
    """Objects with bare keys; strings stand between two of the same token, so they need no escapes.

    string_mark: that token
    before_name: what every call begins with
    Values are strings, numbers, true, false, null, objects and arrays. Other bare text is a string.
    """

    string_mark: str
    before_name: str = "call:"

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.string_mark, self.before_name)

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.before_name,)

    def read(self, context: CallContext) -> Steps[None]:
        reader, writer = context.reader, context.writer
        yield from reader.expect(self.before_name)
        name = yield from reader.run(_NAME, MAX_KEY_CHARACTERS)
        if not context.may_call(name):
            raise MalformedCallError
        if (yield from reader.character()) != "{":
            raise MalformedCallError
        writer.start_call(name)
        yield from self._read_value(reader, writer.arguments, _MAX_NESTING)
        writer.end_call()

    def _read_value(self, reader: Reader, emit: Emit, depth: int) -> Steps[None]:
        yield from reader.skip_space()
        if (yield from reader.peek((self.string_mark,))):
            yield from self._read_string(reader, emit)
            return
        first = yield from reader.character()
        if first in "{[" and depth == 0:
            raise MalformedCallError
        if first == "{":
            yield from read_items(reader, emit, "}", "{}", lambda: self._read_pair(reader, emit, depth - 1))
        elif first == "[":
            yield from read_items(reader, emit, "]", "[]", lambda: self._read_value(reader, emit, depth - 1))
        else:
            text = (yield from reader.run(_BARE, _MAX_BARE_CHARACTERS)).strip()
            if not text:
                raise MalformedCallError
            emit(json_of_text(text, ANY_TYPE))

    def _read_string(self, reader: Reader, emit: Emit) -> Steps[None]:
        """Pass on the string that begins here with its mark."""
        reader.take(reader.at + len(self.string_mark))
        emit('"')
        if (yield from reader.until(Stops((self.string_mark,)), lambda text: emit(json_string_part(text)))) is None:
            raise MalformedCallError
        reader.take(reader.at + len(self.string_mark))
        emit('"')

    def _read_pair(self, reader: Reader, emit: Emit, depth: int) -> Steps[None]:
        if (yield from reader.peek((self.string_mark,))):
            yield from self._read_string(reader, emit)
        else:
            key = yield from reader.run(_NAME, MAX_KEY_CHARACTERS)
            if not key:
                raise MalformedCallError
            emit(json_string(key))
        yield from reader.skip_space()
        yield from reader.expect(":")
        emit(": ")
        yield from self._read_value(reader, emit, depth)
