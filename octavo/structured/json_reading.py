"""Reads an answer in JSON byte by byte, and knows the earlier items of the arrays whose items must differ.

Trusts that the bytes are JSON: a grammar sees to that. Where arrays are to hold distinct items is told by places
(`json_schema/places.py`).
"""

from __future__ import annotations

import enum
import json
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from octavo.structured.json_schema.places import Place
from octavo.structured.json_schema.values import value_key

WHITESPACE = b" \t\n\r"
NUMBER_ENDS = frozenset(b",]}" + WHITESPACE)
MAX_DEPTH = 200  # of values within each other: reading one, and comparing it, recurses
_LITERALS = (b"true", b"false", b"null")


class _Mode(enum.Enum):
    BETWEEN = enum.auto()
    STRING = enum.auto()
    ESCAPE = enum.auto()  # in a string, behind a backslash
    BARE = enum.auto()  # in a number, or in true, false, null


@dataclass(frozen=True, slots=True)
class Frame:
    """An array or an object that is open.

    places: what it may be; below: what the value that is read in it may be; index: of the item
    start: where the item begins in the text; is_item_open: it has not ended; texts, keys: the items before it, sorted
    ways: the bytes that may follow, by number of the item and what there is of it: notes of whoever reads
    """

    is_array: bool
    places: tuple[Place, ...]
    below: Sequence[int] = ()
    index: int = 0
    is_unique: bool = False
    start: int = 0
    is_item_open: bool = True
    texts: tuple[bytes, ...] = ()
    keys: frozenset[Hashable] = frozenset()
    ways: dict[tuple[int, bytes], frozenset[int]] = field(default_factory=dict, compare=False)

    def beginning_like(self, beginning: bytes) -> tuple[bytes, ...]:
        """Return the items that begin so."""
        low = bisect_left(self.texts, beginning)
        return self.texts[low : bisect_left(self.texts, beginning + b"\xff", low)]

    @property
    def awaits_item(self) -> bool:
        """Whether an item that must differ from others is being read, or comes next."""
        return self.is_unique and self.is_item_open

    @property
    def kind_of_item(self) -> int:
        """Return a number that items of the same kind share: those behind the first ones."""
        return min(self.index, max((len(place.prefix) for place in self.places), default=0))


class JsonReading:
    """How far an answer has been read.

    text: the answer without white space between its tokens, each number that has ended in one spelling of its value
    """

    __slots__ = ("_mode", "_places", "_reads_name", "_token_start", "frames", "text")

    def __init__(self, places: Sequence[Place]) -> None:
        self.text = bytearray()
        self.frames: list[Frame] = []
        self._places = places
        self._mode = _Mode.BETWEEN
        self._reads_name = False
        self._token_start = 0

    def copy(self) -> JsonReading:
        """Return a reading of the same that goes on by itself."""
        other = JsonReading(self._places)
        other.text = self.text[:]
        other.frames = self.frames[:]
        other._mode, other._reads_name, other._token_start = self._mode, self._reads_name, self._token_start
        return other

    @property
    def is_in_string(self) -> bool:
        return self._mode in (_Mode.STRING, _Mode.ESCAPE)

    @property
    def number(self) -> bytes:
        """What there is of the number that is being read; empty outside of one."""
        text = bytes(self.text[self._token_start :]) if self._mode is _Mode.BARE else b""
        return b"" if text[:1].isalpha() else text

    @property
    def is_within_unique(self) -> bool:
        return any(frame.is_unique for frame in self.frames)

    def read(self, data: bytes) -> bool:
        """Go on by some bytes; False as soon as an item equals an earlier one, or is too deep: then no more is read."""
        return all(self._read_byte(byte) for byte in data)

    def _read_byte(self, byte: int) -> bool:
        if self.is_in_string:
            self.text.append(byte)
            return self._read_in_string(byte)
        if self._mode is _Mode.BARE:
            number = self.number
            if byte not in NUMBER_ENDS:
                if number and byte in b"eE" and self.is_within_unique:
                    return False  # 1e1, 10e0, 0e9: more spellings than anyone could look through
                self.text.append(byte)
                return bytes(self.text[self._token_start :]) not in _LITERALS or self._end_value()
            if number:
                self.text[self._token_start :] = plain_number(number)
            if not self._end_value():
                return False
        if byte in WHITESPACE:
            return True
        if byte in b"]}":
            self.frames.pop()
            self.text.append(byte)
            return self._end_value()
        self._begin(byte)
        return len(self.frames) <= MAX_DEPTH

    def _read_in_string(self, byte: int) -> bool:
        if self._mode is _Mode.ESCAPE:
            self._mode = _Mode.STRING
        elif byte == ord("\\"):
            self._mode = _Mode.ESCAPE
        elif byte == ord('"'):
            if not self._reads_name:
                return self._end_value()
            self._mode = _Mode.BETWEEN
            name = json.loads(self.text[self._token_start :])
            places = self.frames[-1].places
            below = [number for place in places for number in place.properties.get(name, place.others)]
            self.frames[-1] = replace(self.frames[-1], below=below)
        return True

    def _begin(self, byte: int) -> None:
        """Take a byte between tokens that ends nothing."""
        start = len(self.text)
        self.text.append(byte)
        if byte == ord(","):
            self._next_in_frame()
        elif byte == ord(":"):
            self._reads_name = False
        elif byte in b"[{":
            self._open(is_array=byte == ord("["))
        else:
            self._token_start = start
            self._mode = _Mode.STRING if byte == ord('"') else _Mode.BARE

    def _open(self, *, is_array: bool) -> None:
        numbers = self.frames[-1].below if self.frames else (0,)
        places = tuple(self._places[number] for number in numbers)
        is_unique = is_array and any(place.is_unique for place in places)
        self._reads_name = not is_array
        below = _items_below(places, 0) if is_array else ()
        self.frames.append(Frame(is_array, places, below, 0, is_unique, len(self.text)))

    def _next_in_frame(self) -> None:
        frame = self.frames[-1]
        self._reads_name = not frame.is_array
        if frame.is_array:
            index = frame.index + 1
            below = _items_below(frame.places, index)
            self.frames[-1] = replace(frame, below=below, index=index, start=len(self.text), is_item_open=True)

    def _end_value(self) -> bool:
        """Note the end of a value; False if it is an item that was there before."""
        self._mode = _Mode.BETWEEN
        if not self.frames or not self.frames[-1].is_unique:
            return True
        frame = self.frames[-1]
        text = bytes(self.text[frame.start :])
        # a string has only one spelling here, see GUIDANCE_OPTIONS
        key = text if text.startswith(b'"') else value_key(json.loads(text))
        if key in frame.keys:
            return False
        at = bisect_left(frame.texts, text)
        texts = (*frame.texts[:at], text, *frame.texts[at:])
        self.frames[-1] = replace(frame, is_item_open=False, texts=texts, keys=frame.keys | {key})
        return True


def plain_number(text: bytes) -> bytes:
    """Return the one spelling of what readers with doubles take a number for, if it ends so or in zeros behind it."""
    if len(text) < 16 and text.isdigit():
        return text
    value = float(text if text[-1:].isdigit() else text + b"0")
    return (str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}").encode()


def _items_below(places: Sequence[Place], index: int) -> list[int]:
    return [
        number for place in places for number in (place.prefix[index] if index < len(place.prefix) else place.items)
    ]
