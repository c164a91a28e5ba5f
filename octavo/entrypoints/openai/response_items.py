"""The output items of one response while they grow, and the events that tell it: reasoning, messages, calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.entrypoints.openai.protocol.chat import TokenLogprob
from octavo.entrypoints.openai.protocol.responses import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    FunctionCallItem,
    ItemEvent,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from octavo.parsing.interface import ContentDelta, ParserEvent, ReasoningDelta, ToolCallArgumentsDelta, ToolCallStart

_Item = TypeVar("_Item", OutputMessage, ReasoningItem, FunctionCallItem)


class OutputItems:
    """One item is open at a time; another kind of event closes it. next_number: of the response's next event"""

    def __init__(self, response_id: str, next_number: Callable[[], int]) -> None:
        self.items: list[OutputItem] = []
        self._suffix = response_id.removeprefix("resp_")
        self._next = next_number
        self._is_open = False
        self._logprobs: list[TokenLogprob] = []  # of text that has not come out yet

    def take(self, events: Sequence[ParserEvent], logprobs: Sequence[TokenLogprob]) -> list[ResponseEvent]:
        """Add what is new. Logprobs go with the text that they belong to; those of other items are not told."""
        self._logprobs.extend(logprobs)
        told: list[ResponseEvent] = []
        for event in events:
            if isinstance(event, ContentDelta):
                told += self.add_text(event.text, self._logprobs)
            elif isinstance(event, ReasoningDelta):
                told += self._add_reasoning(event.text)
            elif isinstance(event, ToolCallStart):
                told += self._start_call(event)
            elif isinstance(event, ToolCallArgumentsDelta):
                told += self._add_arguments(event.json_text)
            self._logprobs = []
        return told

    def add_text(self, text: str, logprobs: list[TokenLogprob]) -> list[ResponseEvent]:
        """Add text, perhaps none, to the message."""
        opening: list[ResponseEvent] = []
        if not (self._is_open and isinstance(self.items[-1], OutputMessage)):
            opening = self._open(OutputMessage(self._new_id("msg")), OutputText())
        item = self._last(OutputMessage)
        part = item.content[0]
        part.text += text
        part.logprobs = [*part.logprobs, *logprobs] if logprobs else part.logprobs
        delta = TextDeltaEvent("response.output_text.delta", self._next(), item.id, text, logprobs, self._index)
        return [*opening, delta]

    def finish(self, is_whole: bool) -> list[ResponseEvent]:
        """Close what is open: incomplete if the answer was cut. An answer without anything is an empty message."""
        opening = [] if self.items else self._open(OutputMessage(self._new_id("msg")), OutputText())
        return [*opening, *self._close("completed" if is_whole else "incomplete")]

    # -- kinds -----------------------------------------------------------------------------------------------------

    def _add_reasoning(self, text: str) -> list[ResponseEvent]:
        opening: list[ResponseEvent] = []
        if not (self._is_open and isinstance(self.items[-1], ReasoningItem)):
            opening = self._open(ReasoningItem(self._new_id("rs")), ReasoningText())
        item = self._last(ReasoningItem)
        item.content[0].text += text
        delta = ReasoningDeltaEvent("response.reasoning_text.delta", self._next(), item.id, text, self._index)
        return [*opening, delta]

    def _start_call(self, start: ToolCallStart) -> list[ResponseEvent]:
        return self._open(FunctionCallItem(self._new_id("fc"), start.id, start.name))

    def _add_arguments(self, text: str) -> list[ResponseEvent]:
        item = self._last(FunctionCallItem)
        item.arguments += text
        kind = "response.function_call_arguments.delta"
        return [ArgumentsDeltaEvent(kind, self._next(), item.id, text, self._index)]

    # -- begin and end ---------------------------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _new_id(self, prefix: str) -> str:
        """Return an id that no other item has; the first item's is the response's with another prefix."""
        number = f"_{len(self.items)}" if self.items else ""
        return f"{prefix}_{self._suffix}{number}"

    def _last(self, kind: type[_Item]) -> _Item:
        item = self.items[-1]
        assert isinstance(item, kind), f"the open item is a {type(item).__name__}"
        return item

    def _open(self, item: OutputItem, part: OutputText | ReasoningText | None = None) -> list[ResponseEvent]:
        closing = self._close("completed")
        self.items.append(item)
        self._is_open = True
        added = ItemEvent("response.output_item.added", self._next(), copy.deepcopy(item), self._index)
        if part is None or isinstance(item, FunctionCallItem):
            return [*closing, added]
        item.content.append(part)  # type: ignore[arg-type]  # the part is of the item's kind
        opened = PartEvent("response.content_part.added", self._next(), item.id, type(part)(), self._index)
        return [*closing, added, opened]

    def _close(self, status: str) -> list[ResponseEvent]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item.status = status
        events: list[ResponseEvent] = []
        if isinstance(item, FunctionCallItem):
            kind = "response.function_call_arguments.done"
            events.append(ArgumentsDoneEvent(kind, self._next(), item.id, item.name, item.arguments, self._index))
        elif isinstance(item, ReasoningItem):
            text = item.content[0].text
            events.append(ReasoningDoneEvent("response.reasoning_text.done", self._next(), item.id, text, self._index))
        else:
            part = item.content[0]
            done = "response.output_text.done"
            events.append(TextDoneEvent(done, self._next(), item.id, part.text, part.logprobs, self._index))
        if not isinstance(item, FunctionCallItem):
            part_done = "response.content_part.done"
            events.append(PartEvent(part_done, self._next(), item.id, item.content[0], self._index))
        events.append(ItemEvent("response.output_item.done", self._next(), item, self._index))
        return events
