"""An answer as Anthropic's content blocks, whole or as the events of a stream: thinking, text, uses of tools."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

from octavo.entrypoints.anthropic.protocol import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Delta,
    InputJSONDelta,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from octavo.parsing.interface import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)


class ContentBlocks:
    """The blocks of one answer while they grow. One is open at a time; another kind of event closes it."""

    def __init__(self) -> None:
        self.blocks: list[ContentBlock] = []
        self._is_open = False
        self._arguments = ""  # of the open block, a use of a tool

    def take(self, events: Sequence[ParserEvent]) -> list[StreamEvent]:
        """Add what is new; return the events that tell it."""
        told: list[StreamEvent] = []
        for event in events:
            if isinstance(event, ContentDelta):
                told += self._text(event.text)
            elif isinstance(event, ReasoningDelta):
                told += self._thinking(event.text)
            elif isinstance(event, ToolCallStart):
                told += self._open(ToolUseBlock(event.id, event.name))
                self._arguments = ""
            elif isinstance(event, ToolCallArgumentsDelta):
                self._arguments += event.json_text
                told.append(self._delta(InputJSONDelta(event.json_text)))
            else:
                self._end_call(event)
        return told

    def finish(self) -> list[StreamEvent]:
        """Close what is open; an answer without anything is an empty text."""
        opening = [] if self.blocks else self._open(TextBlock(""))
        return [*opening, *self._close()]

    def _text(self, text: str) -> list[StreamEvent]:
        told: list[StreamEvent] = []
        if not (self._is_open and isinstance(self.blocks[-1], TextBlock)):
            told = self._open(TextBlock(""))
        block = self.blocks[-1]
        assert isinstance(block, TextBlock)
        block.text += text
        return [*told, self._delta(TextDelta(text))]

    def _thinking(self, text: str) -> list[StreamEvent]:
        told: list[StreamEvent] = []
        if not (self._is_open and isinstance(self.blocks[-1], ThinkingBlock)):
            told = self._open(ThinkingBlock(""))
        block = self.blocks[-1]
        assert isinstance(block, ThinkingBlock)
        block.thinking += text
        return [*told, self._delta(ThinkingDelta(text))]

    def _end_call(self, end: ToolCallEnd) -> None:
        """Fill in the input, which a broken-off call has none of."""
        block = self.blocks[-1]
        assert isinstance(block, ToolUseBlock)
        if end.is_complete:
            block.input = json.loads(self._arguments)

    def _delta(self, delta: Delta) -> BlockDelta:
        return BlockDelta(len(self.blocks) - 1, delta)

    def _open(self, block: ContentBlock) -> list[StreamEvent]:
        closing = self._close()
        self.blocks.append(block)
        self._is_open = True
        # a copy: the block grows before this is sent
        return [*closing, BlockStart(len(self.blocks) - 1, copy.copy(block))]

    def _close(self) -> list[StreamEvent]:
        if not self._is_open:
            return []
        self._is_open = False
        return [BlockStop(len(self.blocks) - 1)]
