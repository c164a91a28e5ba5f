"""An answer as the commands show it, wherever it comes from: pieces of text, and how fast they came."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octavo.entrypoints.cli.prompts import Message
from octavo.utils.interrupts import PendingInterrupt


@dataclass(frozen=True)
class Piece:
    """A piece of an answer. num_tokens: a server tells them all with its last piece; error: why the answer ended.

    reasoning: what the model thinks before it answers, as far as a server tells it apart
    """

    text: str
    num_tokens: int
    error: str | None = None
    reasoning: str = ""


Answering = Callable[[list[Message], PendingInterrupt], Iterator[Piece]]


def show(piece: Piece) -> None:
    """Print a piece of an answer; reasoning goes to standard error."""
    if piece.reasoning:
        print(piece.reasoning, end="", file=sys.stderr, flush=True)
    print(piece.text, end="", flush=True)
    if piece.error is not None:
        print(f"octavo: error: {piece.error}", file=sys.stderr)


def report_speed(num_tokens: int, seconds: float, was_stopped: bool) -> None:
    """Print the line that follows an answer."""
    stopped = ", stopped" if was_stopped else ""
    print(f"[{num_tokens} tokens, {num_tokens / max(seconds, 1e-9):.1f} tokens/s{stopped}]", file=sys.stderr)
