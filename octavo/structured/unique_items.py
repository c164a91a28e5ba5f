"""Arrays of distinct items (`uniqueItems`): a grammar has no memory, so a reader beside it takes tokens away.

Of the tokens that the grammar allows, those are forbidden that end an item which an earlier one equals, and those
behind which no other item is left. Wraps any backend; grammars without such arrays pass through untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.structured.backend import Backend, Bitmask, Matcher
from octavo.structured.json_reading import MAX_DEPTH, NUMBER_ENDS, WHITESPACE, Frame, JsonReading, plain_number
from octavo.structured.json_schema.places import Place
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec

Ids = NDArray[np.intp]

_MAX_LOOK_AHEAD = 200  # bytes that can only go one way; behind more, an item may turn out to have no end
_WHITESPACE, _DIGITS = frozenset(WHITESPACE), frozenset(b"0123456789")
_NOTHING: frozenset[int] = frozenset()
_UNCLEAR = frozenset(b"-.0eE")  # with these a number may go on to nothing but another spelling of it: -0, 1.0
_PLAIN_QUOTING = re.compile(rb'^[^"\\]*"[ \t\n\r]*(?:,[ \t\n\r]*"?)?$')
_MAX_DIGITS, _MAX_DECIMALS = 15, 20  # numbers with more digits may be the same double; no bound has more decimals


class TokenTables:
    """A vocabulary by what its tokens may end.

    plain_quoting: a string, going on to the next one's begin at most; complex_quoting: a string and more
    ending_so: the plain ones by what of the string is in them
    bare, long_bare: a value, where no string is open, or behind which a number (a long one) may have none of its own
    opening: they begin an array and may end an item of it
    nesting: they begin an array or an object; deepest: how many one token may begin
    most_digits: of a number in one token
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = {*vocabulary.special_ids, *vocabulary.eos_ids}
        self.texts = [b"" if i in special else token for i, token in enumerate(vocabulary.tokens)]
        quoting = self._ids(re.compile(rb'"'))
        self.plain_quoting = self._ids(_PLAIN_QUOTING)
        self.complex_quoting = np.setdiff1d(quoting, self.plain_quoting)
        self.ending_so: dict[bytes, list[int]] = {}
        for token_id in self.plain_quoting.tolist():
            self.ending_so.setdefault(self.texts[token_id].partition(b'"')[0], []).append(token_id)
        ending = self._ids(re.compile(rb'(?s)[,\]}\s]|".*"'))
        turning = self._ids(re.compile(rb"(?:[-+.]|(?:^|\d)[eE])\d*$|0$"))
        counting = self._ids(re.compile(rb"^[\d.]*\d$"))
        self.bare = np.union1d(ending, turning)
        self.long_bare = np.union1d(self.bare, counting)
        self.most_digits = max((len(self.texts[token_id]) for token_id in counting), default=0)
        self.nesting = self._ids(re.compile(rb"[\[{]"))
        self.opening = self._ids(re.compile(rb"(?s)\[.*,"))
        self.is_text = np.array([bool(text) for text in self.texts])
        self.first_bytes = np.array([text[0] if text else 0 for text in self.texts], np.uint8)
        self.longest = max(map(len, self.texts), default=0)
        self.deepest = max((text.count(b"[") + text.count(b"{") for text in self.texts), default=0)
        self._id_of: dict[bytes, int] = {}
        self._twins: dict[bytes, list[int]] = {}
        for token_id in np.flatnonzero(self.is_text).tolist():
            if self._id_of.setdefault(self.texts[token_id], token_id) != token_id:
                self._twins.setdefault(self.texts[token_id], []).append(token_id)

    def _ids(self, pattern: re.Pattern[bytes]) -> Ids:
        return np.array([i for i, text in enumerate(self.texts) if pattern.search(text)], np.intp)

    def spellings(self, text: bytes) -> list[int]:
        """Return the ids of the tokens that are a text."""
        token_id = self._id_of.get(text)
        return [] if token_id is None else [token_id, *self._twins.get(text, ())]


class UniqueItemsMatcher:
    """See Matcher."""

    __slots__ = ("_backend", "_error", "_places", "_texts", "_token_ids", "inner", "reading")

    def __init__(self, inner: Matcher, backend: UniqueItemsBackend, places: Sequence[Place]) -> None:
        self.inner = inner
        self.reading = JsonReading(places)
        self._places = places
        self._backend = backend
        self._texts = backend.tables.texts
        self._token_ids: list[int] = []
        self._error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self._error is None and self.inner.is_complete

    @property
    def error(self) -> str | None:
        return self._error or self.inner.error

    def accept(self, token_id: int) -> bool:
        return self._accept(token_id, self.inner.accept)

    def accept_unlocked(self, token_id: int) -> bool:
        return self._accept(token_id, self.inner.accept_unlocked)

    def _accept(self, token_id: int, accept_inner: Callable[[int], bool]) -> bool:
        if self.error is not None or not accept_inner(token_id):
            return False
        self._token_ids.append(token_id)
        if not self.reading.read(self._texts[token_id]):
            is_deep = len(self.reading.frames) > MAX_DEPTH
            what = f"values nest at most {MAX_DEPTH} levels" if is_deep else "an item equals an earlier one"
            self._error = f"keyword 'uniqueItems': {what}"
        return self._error is None

    def num_valid(self, token_ids: Sequence[int]) -> int:
        reading = self.reading.copy()
        num_valid = self.inner.num_valid(token_ids)
        for index, token_id in enumerate(token_ids[:num_valid]):
            if not reading.read(self._texts[token_id]):
                return index
        return num_valid

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        del self._token_ids[len(self._token_ids) - num_tokens :]
        self._error = None
        self.reading = JsonReading(self._places)
        self.reading.read(b"".join(self._texts[token_id] for token_id in self._token_ids))

    def copy(self) -> UniqueItemsMatcher:
        other = UniqueItemsMatcher(self.inner.copy(), self._backend, self._places)
        other.reading = self.reading.copy()
        other._token_ids, other._error = self._token_ids[:], self._error
        return other


class UniqueItemsBackend:
    """See Backend."""

    def __init__(self, inner: Backend, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._tables: TokenTables | None = None

    @property
    def tables(self) -> TokenTables:
        """What is known of the vocabulary; made for the first grammar that needs it."""
        if self._tables is None:
            self._tables = TokenTables(self._vocabulary)
        return self._tables

    def compile(self, spec: GrammarSpec) -> Matcher:
        matcher = self._inner.compile(spec)
        if not spec.unique_places:
            return matcher
        return UniqueItemsMatcher(matcher, self, msgspec.json.decode(spec.unique_places, type=list[Place]))

    def fill_mask(self, matcher: Matcher, mask: Bitmask) -> None:
        if not isinstance(matcher, UniqueItemsMatcher):
            self._inner.fill_mask(matcher, mask)
            return
        self._inner.fill_mask(matcher.inner, mask)
        if matcher.error is None:
            _Restriction(matcher, mask[0], self).apply()

    def following_bytes(self, matcher: Matcher) -> frozenset[int]:
        """Return the bytes with which a matcher, not one of this backend's own, may go on."""
        row = np.zeros((1, len(self.tables.texts) // 32), np.int32)
        self._inner.fill_mask(matcher, row)
        allowed = np.unpackbits(row[0].view(np.uint8), bitorder="little").astype(np.bool_)
        return frozenset(np.unique(self.tables.first_bytes[allowed & self.tables.is_text]).tolist())


class _Restriction:
    """Takes the tokens out of a row that lead to an equal item."""

    def __init__(self, matcher: UniqueItemsMatcher, row: NDArray[np.int32], backend: UniqueItemsBackend) -> None:
        self.matcher = matcher
        self.reading = matcher.reading
        self.words = row.view(np.uint32)
        self.backend = backend
        self.tables = backend.tables

    def apply(self) -> None:
        self.is_allowed = np.unpackbits(self.words.view(np.uint8), bitorder="little").view(np.bool_)
        for token_id in self.candidates():
            after = self.reading.copy()
            is_right = after.read(self.tables.texts[token_id])
            if not is_right or not self.have_ways(after, 0, (token_id,)):
                self.words[token_id // 32] &= ~np.uint32(1 << token_id % 32)

    def candidates(self) -> list[int]:
        """Return the allowed tokens that may end an item, and those that go on like an earlier one, or too deep."""
        if not self.reading.is_within_unique:
            ids = self.tables.opening
        elif self.reading.is_in_string:
            ids = np.concatenate([self.tables.complex_quoting, self.plainly_ending()])
        else:
            is_long = len(self.reading.number) + self.tables.most_digits > _MAX_DIGITS
            ids = self.tables.long_bare if is_long else self.tables.bare
        likely: set[bytes] = set()
        for frame in self.reading.frames:
            if frame.awaits_item and frame.texts:
                beginning = bytes(self.reading.text[frame.start :])
                for text in frame.beginning_like(beginning):
                    rest = text[len(beginning) : len(beginning) + self.tables.longest]
                    likely.update(rest[:end] for end in range(1, len(rest) + 1))
        if len(self.reading.frames) + self.tables.deepest > MAX_DEPTH and not self.reading.is_in_string:
            ids = np.concatenate([ids, self.tables.nesting])
        more = [token_id for text in likely for token_id in self.tables.spellings(text)]
        return sorted({*self.allowed(ids), *self.allowed(np.array(more, np.intp))})

    def allowed(self, ids: Ids) -> list[int]:
        kept: list[int] = ids[self.is_allowed[ids]].tolist()
        return kept

    def plainly_ending(self) -> Ids:
        """Return the tokens of `plain_quoting` that may end the string that is read, but should not."""
        *outer, frame = self.reading.frames
        for one in outer:
            if one.awaits_item and one.beginning_like(bytes(self.reading.text[one.start :])):
                return self.tables.plain_quoting
        if not frame.awaits_item:
            return np.zeros(0, np.intp)
        kind = replace(frame, index=frame.index + 1).kind_of_item
        if len(frame.ways.get((kind, b'"'), _NOTHING)) <= len(frame.texts) + 1:
            return self.tables.plain_quoting
        # another item is left, for one of these bytes begins none: what matters is whether this one is new
        beginning = bytes(self.reading.text[frame.start :])
        rests = (text[len(beginning) : -1] for text in frame.beginning_like(beginning))
        return np.array([token_id for rest in rests for token_id in self.tables.ending_so.get(rest, ())], np.intp)

    def have_ways(self, after: JsonReading, outermost: int, token_ids: tuple[int, ...]) -> bool:
        """Tell whether the items that are being read may become new ones, in the frames from `outermost` on."""
        depths = range(outermost, len(after.frames))
        return all(self.has_way(after, depth, token_ids) for depth in depths if after.frames[depth].awaits_item)

    def has_way(self, after: JsonReading, depth: int, token_ids: tuple[int, ...]) -> bool:
        """Tell whether an item that goes on with these tokens, as it is read `after` them, may become a new one."""
        frame = after.frames[depth]
        beginning = bytes(after.text[frame.start :])
        alike = frame.beginning_like(beginning)
        number = after.number
        plain = beginning[: len(beginning) - len(number)] + plain_number(number) if number else beginning
        likely = frame.beginning_like(plain) if number else ()  # those that equal it, if the number ends here, are:
        ended = [text for text in likely if text == plain or text[len(plain)] in NUMBER_ENDS]
        if not (alike or ended) or len(token_ids) > _MAX_LOOK_AHEAD:
            return True
        following = self.following(frame, beginning, token_ids) - (_NOTHING if after.is_in_string else _WHITESPACE)
        taken = {text[len(beginning)] for text in alike if text != beginning}
        taken.update(*(NUMBER_ENDS if text == plain else [text[len(plain)]] for text in ended))
        unclear = _NOTHING if after.is_in_string else _UNCLEAR | _DIGITS if len(number) >= _MAX_DIGITS else _UNCLEAR
        if is_spent(number) and following & NUMBER_ENDS:
            following -= _DIGITS
        is_alone = not any(inner.is_unique for inner in after.frames[depth + 1 :])
        if is_alone and following - taken - unclear:
            return True
        for byte in sorted(following):
            further = after.copy()
            if further.read(bytes([byte])):
                spelled = self.tables.spellings(bytes([byte]))  # without a token for the byte nobody can look further
                inside = depth if byte in taken | unclear else depth + 1
                if not spelled or self.have_ways(further, inside, (*token_ids, spelled[0])):
                    return True
        return False

    def following(self, frame: Frame, beginning: bytes, token_ids: tuple[int, ...]) -> frozenset[int]:
        """Return the bytes that may come next."""
        known = frame.ways.get((frame.kind_of_item, beginning))
        if known is None:
            matcher = self.matcher.inner.copy()
            for token_id in token_ids:
                matcher.accept(token_id)
            known = frame.ways[frame.kind_of_item, beginning] = self.backend.following_bytes(matcher)
        return known


def is_spent(number: bytes) -> bool:
    """Tell whether more digits may leave a number's value, as a double, what it is."""
    whole, _, decimals = number.partition(b".")
    digits = (whole + decimals).strip(b"-0")
    return bool(decimals) and (len(digits) >= _MAX_DIGITS or len(decimals) > _MAX_DECIMALS)
