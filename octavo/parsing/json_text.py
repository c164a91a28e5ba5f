"""Reading JSON as it arrives: passed on as it is written, checked for its brackets only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from octavo.parsing.reader import Emit, MalformedCallError, Reader, Steps, Stops

MAX_NESTING = 200  # of JSON that a model writes; what is deeper is not a call
MAX_KEY_CHARACTERS = 256  # of keys and function names in calls

_OUTSIDE_STRINGS = re.compile(r'["{}\[\]]')
_INSIDE_STRINGS = re.compile(r'["\\]')
_PLAIN = re.compile(r'[^\s,:{}\[\]"]*')
_STRING_STOPS = Stops(('"', "\\"))
_CLOSER = {"{": "}", "[": "]"}


def json_string(text: str) -> str:
    """Return a text as a JSON string, not escaping beyond need."""
    return json.dumps(text, ensure_ascii=False)


def json_string_part(text: str) -> str:
    """Return part of a text as part of a JSON string, without quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class _Scan:
    """Where a scan through a container stands; every character is looked at once."""

    __slots__ = ("closers", "in_string", "is_wrong", "skip_next")

    def __init__(self) -> None:
        self.closers: list[str] = []
        self.in_string = False
        self.skip_next = False  # the character after a backslash
        self.is_wrong = False

    def advance(self, text: str, at: int) -> int:
        """Return how far the container reaches in the text; after its end `closers` is empty."""
        if self.skip_next and at < len(text):
            self.skip_next = False
            at += 1
        while at < len(text):
            found = (_INSIDE_STRINGS if self.in_string else _OUTSIDE_STRINGS).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            if self.in_string:
                if found[0] == '"':
                    self.in_string = False
                elif at < len(text):
                    at += 1
                else:
                    self.skip_next = True
            elif not self._bracket(found[0]):
                return at - 1
            elif not self.closers:
                return at
        return at

    def _bracket(self, character: str) -> bool:
        """Take a quote or bracket outside strings; False when it cannot stand here."""
        if character == '"':
            self.in_string = True
        elif character in _CLOSER:
            self.closers.append(_CLOSER[character])
            self.is_wrong = len(self.closers) > MAX_NESTING
        else:
            self.is_wrong = self.closers.pop() != character
        return not self.is_wrong


def read_container(reader: Reader, emit: Emit) -> Steps[None]:
    """Pass on the object or array that begins here.

    Raises MalformedCallError where its brackets do not match or nest too deep, or the output ends; what came before was
    passed on.
    """
    scan = _Scan()
    while True:
        end = scan.advance(reader.text, reader.at)
        if end > reader.at:
            emit(reader.take(end))
        if scan.is_wrong:
            raise MalformedCallError
        if not scan.closers:
            return
        if not (yield from reader.more()):
            raise MalformedCallError


def read_items(
    reader: Reader, emit: Emit, closer: str, brackets: str, read_item: Callable[[], Steps[None]]
) -> Steps[None]:
    """Pass on as JSON what begins here with a bracket: items with commas between them, perhaps one more at the end.

    closer: what ends it here; brackets: the two that JSON has for it
    """
    reader.take(reader.at + 1)
    emit(brackets[0])
    separator = ""
    while True:
        yield from reader.skip_space()
        if (yield from reader.accept((closer,))) is not None:
            break
        emit(separator)
        separator = ", "
        yield from read_item()
        yield from reader.skip_space()
        if (yield from reader.accept((",",))) is None:
            yield from reader.expect(closer)
            break
    emit(brackets[1])


def read_value(reader: Reader, emit: Emit) -> Steps[None]:
    """Pass on the JSON value that begins here. Raises MalformedCallError as `read_container`."""
    first = yield from reader.character()
    if first in _CLOSER:
        yield from read_container(reader, emit)
    elif first == '"':
        yield from read_raw_string(reader, emit)
    else:
        yield from _read_plain(reader, emit)


def read_raw_string(reader: Reader, emit: Emit) -> Steps[None]:
    """Pass on the string that begins here, quotes and escapes as they are."""
    yield from reader.character()
    emit(reader.take(reader.at + 1))
    skip_next = False
    while True:
        at, text = reader.at, reader.text
        if skip_next and at < len(text):
            skip_next = False
            at += 1
        is_closed = False
        while at < len(text) and not is_closed:
            found = _INSIDE_STRINGS.search(text, at)
            if found is None:
                at = len(text)
            elif found[0] == '"':
                at, is_closed = found.end(), True
            else:
                skip_next = found.end() == len(text)
                at = min(found.end() + 1, len(text))
        if at > reader.at:
            emit(reader.take(at))
        if is_closed:
            return
        if not (yield from reader.more()):
            raise MalformedCallError


def read_string(reader: Reader, limit: int = MAX_KEY_CHARACTERS) -> Steps[str]:
    """Read the string that begins here. Raises MalformedCallError for none, a longer one, or wrong escapes."""
    yield from reader.expect('"')
    parts: list[str] = []
    allowed = limit
    while allowed >= 0:
        text, mark = yield from reader.short_text(_STRING_STOPS, allowed)
        reader.take(reader.at + 1)
        parts.append(text)
        if mark == '"':
            return decode_string(f'"{"".join(parts)}"')
        parts.append(mark + (yield from reader.character()))
        reader.take(reader.at + 1)
        allowed -= len(text) + 2
    raise MalformedCallError


def decode_string(raw: str) -> str:
    """Return the text of a JSON string; raw line ends in it are taken as they are."""
    try:
        text: str = json.loads(raw, strict=False)
    except ValueError:
        raise MalformedCallError from None
    return text


def _read_plain(reader: Reader, emit: Emit) -> Steps[None]:
    """Pass on a number, true, false or null: what is neither white space nor JSON's punctuation."""
    num_read = 0
    while True:
        found = _PLAIN.match(reader.text, reader.at)
        assert found
        if found.end() > reader.at:
            num_read += found.end() - reader.at
            emit(reader.take(found.end()))
        if reader.at < len(reader.text):
            break
        if not (yield from reader.more()):
            raise MalformedCallError
    if not num_read:
        raise MalformedCallError
