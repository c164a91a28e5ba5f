"""What a tool-call format is: markers around calls, and a body that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo.parsing.interface import Tool
from octavo.parsing.reader import Reader, Steps
from octavo.parsing.writer import EventWriter, MakeId, random_id


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the body of a call is read with.

    tools: by name; empty when they are not known
    is_bare: nothing but the syntax tells the call from content, so it has to be exact and name one of the tools
    """

    reader: Reader
    writer: EventWriter
    tools: Mapping[str, Tool]
    is_bare: bool = False

    def may_call(self, name: str) -> bool:
        """Tell whether a name can be that of a call. Behind a marker any can: the client decides about unknown ones."""
        return bool(name) and (not self.is_bare or not self.tools or name in self.tools)


class CallBody(Protocol):
    """The part of a format between its markers: at least one call."""

    __slots__ = ()

    @property
    def literals(self) -> tuple[str, ...]:
        """Markers inside calls that may be special tokens."""
        return ()

    @property
    def starts(self) -> tuple[str, ...]:
        """What a further call between the same markers begins with; empty when each has markers of its own."""
        return ()

    def read(self, context: CallContext) -> Steps[None]:
        """Read calls and write their events.

        Raises MalformedCallError when what comes is no call, or the output ends inside it: nothing is written before it
        is certain that a call is one, so what was read until then becomes content again.
        """


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes a call whose arguments are JSON, for a grammar: `begin`, the arguments, `end`.

    trigger: what begin begins with, and free text may not hold; begin: {name} in it is the function's, as JSON, and
    braces are doubled
    """

    trigger: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes tool calls; one declaration serves streams and whole outputs.

    opening: markers before calls, of a whole section or of each call; any of them begins reading
    closing: markers after calls, in any order; none of them has to be there
    bare: beginnings of a call without a marker; they belong to the call
    separators: characters between calls, besides white space
    syntax: what lets a grammar hold free calls to their schema; None where no grammar can
    make_id: ids of calls for which the model writes none
    is_forced: the output is nothing but calls, so one that breaks off before or between them shows no part of it
    is_harmony: calls are messages in gpt-oss's channels; the fields above do not count
    """

    name: str
    body: CallBody
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    separators: str = ""
    syntax: CallSyntax | None = None
    make_id: MakeId = random_id
    is_forced: bool = False
    is_harmony: bool = False

    @property
    def triggers(self) -> tuple[str, ...]:
        """Where in content to look closer."""
        return (*self.opening, *self.bare)

    @property
    def markers(self) -> tuple[str, ...]:
        """Every literal of the format."""
        return (*self.opening, *self.closing, *self.body.literals)
