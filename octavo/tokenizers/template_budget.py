"""How much one template rendering may do: CPU time of its thread, and characters and items it may create.

A template comes from a model file or a request and is not trusted. The sandbox keeps it from our objects; this keeps
it from the machine's time and memory. Everything that creates a string or a list asks here first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set

from octavo.errors import InvalidRequestError

MAX_CPU_S = 0.5  # of the rendering thread, so that a busy machine does not fail honest templates
MIN_CREATED_UNITS = 32 * 1024 * 1024  # characters plus list items, over a whole rendering
CREATED_UNITS_PER_INPUT_UNIT = 32  # an honest template copies a long conversation a few times
MAX_RANGE = 100_000
MAX_INTEGER_BITS = 16_384
_TICKS_PER_CLOCK_READ = 64
_UNITS_WORTH_A_CLOCK_READ = 4096


class TemplateBudget:
    """The budget of one rendering. Every method raises InvalidRequestError once the budget is used up."""

    __slots__ = ("_deadline", "_left", "_max_units", "_ticks")

    def __init__(self, input_units: int = 0) -> None:
        self._deadline = time.thread_time() + MAX_CPU_S
        self._max_units = MIN_CREATED_UNITS + CREATED_UNITS_PER_INPUT_UNIT * input_units
        self._left = self._max_units
        self._ticks = 0

    def tick(self) -> None:
        """Count one small step: a loop's turn, a call."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CLOCK_READ == 0:
            self.check_time()

    def check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise InvalidRequestError(
                f"the chat template ran for more than {MAX_CPU_S:g} s of CPU time and was stopped; use a simpler one",
                "chat_template",
            )

    def charge(self, num_units: int) -> None:
        """Pay for that many new characters or items, before they are created where their number is known."""
        if num_units > _UNITS_WORTH_A_CLOCK_READ:
            self.check_time()
        else:
            self.tick()
        self._left -= num_units
        if self._left < 0:
            raise InvalidRequestError(
                f"the chat template creates more than {self._max_units} characters of text and was stopped; "
                "use a simpler one",
                "chat_template",
            )

    def charge_value(self, value: object) -> None:
        """Pay for a value as it would be written out."""
        self.charge(len(value) if isinstance(value, str) else self.written_size(value))

    def is_beyond(self, num_units: int) -> bool:
        return num_units > self._left

    def written_size(self, value: object) -> int:
        """Return about how many characters a value takes when written; stops counting beyond the budget."""
        total = 0
        stack = [value]
        while stack and not self.is_beyond(total + len(stack)):
            item = stack.pop()
            total += self.own_size(item)
            stack.extend(self.children(item))
        return total + len(stack)

    def own_size(self, item: object) -> int:
        """Return the size of one node, without what it contains."""
        self.tick()
        if isinstance(item, str):
            return 1 + len(item)
        if isinstance(item, int):
            return 1 + item.bit_length() // 3
        return 1

    def children(self, item: object) -> Iterable[object]:
        """Return what a list or mapping contains."""
        if isinstance(item, Mapping):
            return (*item.keys(), *item.values())
        return item if isinstance(item, (list, tuple, Set)) else ()
