"""Calls in Python's syntax, `name(key="value", other=[1, None])`, with their arguments turned into JSON."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, json_string, json_string_part, read_items
from octavo.parsing.reader import Emit, MalformedCallError, Reader, Steps, Stops

_NAME = re.compile(r"[\w.\-]*")
_NAME_START = re.compile(r"[^\W\d]")
_ATOM = re.compile(r"[^\s,:()\[\]{}='\"]*")
_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]*")
_OCTAL = re.compile(r"[0-7]*")
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_QUOTES = ('"""', "'''", '"', "'")
_STRING_STOPS = {quote: Stops((quote, "\\")) for quote in _QUOTES}
_MAX_ATOM_CHARACTERS = 8192
_MAX_NESTING = 40  # of lists and dicts; each level is a few Python frames


@dataclass(frozen=True, slots=True)
class PythonCalls(CallBody):
    """`[first(a=1), second()]`, or calls without the brackets, one after the other.

    Arguments have names and literal values; tuples become arrays. A call begins for certain at its first argument's
    name, or at its closing parenthesis.
    """

    def read(self, context: CallContext) -> Steps[None]:
        reader = context.reader
        if (yield from reader.accept(("[",))) is None:
            yield from _read_row(context)
            return
        while True:
            yield from reader.skip_space()
            yield from _read_call(context)
            yield from reader.skip_space()
            if (yield from reader.accept((",",))) is None:
                break
            yield from reader.skip_space()
            if (yield from reader.peek(("]",))):
                break
        yield from reader.expect("]")


def _read_row(context: CallContext) -> Steps[None]:
    """Read calls without brackets around them, with white space or commas between them."""
    reader = context.reader
    while True:
        yield from _read_call(context)
        reader.forget()
        yield from reader.skip_space(",")
        if not _NAME_START.match((yield from reader.character())):
            return


def _read_call(context: CallContext) -> Steps[None]:
    reader, writer = context.reader, context.writer
    name = yield from reader.run(_NAME, MAX_KEY_CHARACTERS)
    if not context.may_call(name) or name[0].isdigit():
        raise MalformedCallError
    yield from reader.expect("(")
    is_first = True
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept((")",))) is not None:
            break
        key = yield from reader.run(_NAME, MAX_KEY_CHARACTERS)
        yield from reader.skip_space()
        yield from reader.expect("=")
        if not key:
            raise MalformedCallError
        yield from reader.skip_space()
        if is_first:
            writer.start_call(name)
        writer.arguments(f"{'{' if is_first else ', '}{json_string(key)}: ")
        is_first = False
        yield from _read_literal(reader, writer.arguments, _MAX_NESTING)
        yield from reader.skip_space()
        if (yield from reader.accept((",",))) is None:
            yield from reader.expect(")")
            break
    if is_first:
        writer.start_call(name)
    writer.arguments("{}" if is_first else "}")
    writer.end_call()


def _read_literal(reader: Reader, emit: Emit, depth: int) -> Steps[None]:
    """Pass a Python literal on as JSON. Raises MalformedCallError for anything else, and nesting beyond `depth`."""
    first = yield from reader.character()
    if first in "\"'":
        quote = yield from reader.accept(_QUOTES)
        assert quote is not None
        emit('"')
        yield from _read_string(reader, emit, quote)
        emit('"')
    elif first in "[({":
        if depth == 0:
            raise MalformedCallError
        if first == "{":
            yield from read_items(reader, emit, "}", "{}", lambda: _read_pair(reader, emit, depth - 1))
        else:
            closer = "]" if first == "[" else ")"
            yield from read_items(reader, emit, closer, "[]", lambda: _read_literal(reader, emit, depth - 1))
    else:
        emit(_atom_as_json((yield from reader.run(_ATOM, _MAX_ATOM_CHARACTERS))))


def _read_pair(reader: Reader, emit: Emit, depth: int) -> Steps[None]:
    yield from _read_key(reader, emit)
    yield from reader.skip_space()
    yield from reader.expect(":")
    emit(": ")
    yield from reader.skip_space()
    yield from _read_literal(reader, emit, depth)


def _read_key(reader: Reader, emit: Emit) -> Steps[None]:
    """Pass a dict's key on; JSON has strings only, so other atoms become strings, as json.dumps writes them."""
    if (yield from reader.character()) in "\"'":
        yield from _read_literal(reader, emit, 0)
        return
    atom = _atom_as_json((yield from reader.run(_ATOM, _MAX_ATOM_CHARACTERS)))
    emit(json_string(atom))


def _read_string(reader: Reader, emit: Emit, quote: str) -> Steps[None]:
    """Pass a string's text on up to its closing quote, which is consumed."""

    def emit_plain(text: str) -> None:
        emit(json_string_part(text))

    while True:
        found = yield from reader.until(_STRING_STOPS[quote], emit_plain)
        if found is None:
            raise MalformedCallError
        reader.take(reader.at + len(found))
        if found == quote:
            return
        emit((yield from _read_escape(reader)))


def _read_escape(reader: Reader) -> Steps[str]:
    """Return what follows a backslash as part of a JSON string; unknown escapes stay as they are, as in Python."""
    character = yield from reader.character()
    reader.take(reader.at + 1)
    if character in _SIMPLE_ESCAPES:
        return json_string_part(_SIMPLE_ESCAPES[character])
    if character in _DIGITS:
        digits = yield from _digits(reader, _HEXADECIMAL, _DIGITS[character])
        is_whole = len(digits) == _DIGITS[character]
        return _code_point(int(digits, 16)) if is_whole else json_string_part(f"\\{character}{digits}")
    if character in "01234567":
        rest = yield from _digits(reader, _OCTAL, 2)
        return _code_point(int(character + rest, 8))
    return json_string_part(f"\\{character}")


def _digits(reader: Reader, pattern: re.Pattern[str], limit: int) -> Steps[str]:
    """Consume and return at most `limit` digits."""
    digits = ""
    while len(digits) < limit:
        character = yield from reader.character()
        if not pattern.fullmatch(character):
            break
        digits += reader.take(reader.at + 1)
    return digits


def _code_point(code: int) -> str:
    """Return a character as part of a JSON string. Halves of surrogate pairs stay escaped: JSON readers join them."""
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    if code > 0x10FFFF:
        return json_string_part(f"\\U{code:08x}")
    return json_string_part(chr(code))


def _atom_as_json(atom: str) -> str:
    """Return a constant or number as JSON, numbers as they are written where JSON allows it."""
    if atom in _CONSTANTS:
        return _CONSTANTS[atom]
    if _JSON_NUMBER.fullmatch(atom):
        return atom
    try:
        value = ast.literal_eval(atom)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise MalformedCallError from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedCallError
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        raise MalformedCallError from None
