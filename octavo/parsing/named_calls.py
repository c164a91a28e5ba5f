"""Calls with the name before the arguments: `name<separator>{...}`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.parsing.formats import CallBody, CallContext
from octavo.parsing.json_calls import NO_ARGUMENTS, JsonCalls
from octavo.parsing.json_text import MAX_KEY_CHARACTERS, read_container, read_string
from octavo.parsing.reader import MalformedCallError, Steps, Stops


@dataclass(frozen=True, slots=True)
class NamedCalls(CallBody):
    """A name, what stands between it and the arguments, and the arguments as JSON.

    before_name: markers before the name, each may be missing
    after_name: any of these ends the name; the last one may be `{`, which belongs to the arguments
    before_id: what separates the name from an id that the model writes ("" when it writes none)
    before_arguments, after_arguments: what may stand around the arguments, such as the fence of a code block
    without_arguments: markers that may end a call in the place of its arguments; they are left to the format
    id_is_name: the name is written as an id, `functions.name:0`, which is the call's id
    """

    after_name: tuple[str, ...]
    before_name: tuple[str, ...] = ()
    before_id: str = ""
    before_arguments: tuple[str, ...] = ()
    after_arguments: tuple[str, ...] = ()
    without_arguments: tuple[str, ...] = ()
    id_is_name: bool = False

    @property
    def literals(self) -> tuple[str, ...]:
        return (*self.before_name, *self.after_name, self.before_id, *self.without_arguments)

    def read(self, context: CallContext) -> Steps[None]:
        reader, writer = context.reader, context.writer
        for marker in self.before_name:
            yield from reader.accept((marker,))
        name, call_id = yield from self._read_name(context)
        yield from reader.skip_space()
        for marker in self.before_arguments:
            yield from reader.accept((marker,))
            yield from reader.skip_space()
        if (yield from reader.character()) == "{":
            writer.start_call(name, call_id)
            yield from read_container(reader, writer.arguments)
        elif self.without_arguments and (yield from reader.peek(self.without_arguments)):
            writer.start_call(name, call_id)
            writer.arguments(NO_ARGUMENTS)
        else:
            raise MalformedCallError
        writer.end_call()
        for marker in self.after_arguments:
            yield from reader.skip_space()
            yield from reader.accept((marker,))

    def _read_name(self, context: CallContext) -> Steps[tuple[str, str | None]]:
        """Read the name, and the id if the model writes one."""
        reader = context.reader
        ends = (*self.after_name, self.before_id) if self.before_id else self.after_name
        text, end = yield from reader.short_text(Stops(ends), MAX_KEY_CHARACTERS)
        if end != "{":
            reader.take(reader.at + len(end))
        call_id: str | None = None
        if end == self.before_id and self.before_id:
            written, end = yield from reader.short_text(Stops(self.after_name), MAX_KEY_CHARACTERS)
            call_id = written.strip() or None
            if end != "{":
                reader.take(reader.at + len(end))
        name = text.strip()
        if self.id_is_name:
            call_id, name = _split_id(name)
        if not context.may_call(name) or any(character.isspace() for character in name):
            raise MalformedCallError
        return name, call_id


def _split_id(written: str) -> tuple[str | None, str]:
    """Return the id and the name of `functions.name:0`; None and the name when no number makes it an id."""
    name, colon, number = written.rpartition(":")
    is_id = bool(colon) and number.isdigit()
    return (written if is_id else None), (name if is_id else written).removeprefix("functions.")


@dataclass(frozen=True, slots=True)
class JsonOr(CallBody):
    """Either form behind the same marker: an array or object of JSON, or the other."""

    json: JsonCalls
    other: CallBody

    @property
    def literals(self) -> tuple[str, ...]:
        return self.other.literals

    @property
    def starts(self) -> tuple[str, ...]:
        return (*self.json.starts, *self.other.starts)

    def read(self, context: CallContext) -> Steps[None]:
        is_json = (yield from context.reader.character()) in "[{"
        yield from (self.json if is_json else self.other).read(context)


@dataclass(frozen=True, slots=True)
class KeyedCalls(CallBody):
    """An array of objects whose only key is the function's name: `[{"name": {...}}]`."""

    def read(self, context: CallContext) -> Steps[None]:
        reader, writer = context.reader, context.writer
        yield from reader.expect("[")
        while True:
            yield from reader.skip_space()
            yield from reader.expect("{")
            yield from reader.skip_space()
            name = yield from read_string(reader)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            if not context.may_call(name) or (yield from reader.character()) != "{":
                raise MalformedCallError
            writer.start_call(name)
            yield from read_container(reader, writer.arguments)
            writer.end_call()
            yield from reader.skip_space()
            yield from reader.expect("}")
            yield from reader.skip_space()
            if (yield from reader.accept((",",))) is None:
                break
        yield from reader.expect("]")
