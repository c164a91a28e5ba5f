"""When a core process that owes an answer has been silent for too long. Knows the clock; no processes, no messages."""

from __future__ import annotations


class SilenceWatch:
    """Counts silence only while somebody listens: of a pause between two looks, at most two intervals count.

    So a front end that was itself stopped (a suspended machine, a frozen container) blames nobody for that time.
    Times are seconds of any one clock.
    """

    def __init__(self, timeout_s: float | None) -> None:
        """timeout_s: silence that means that the core hangs; None: it may be silent for ever"""
        self.timeout_s = timeout_s
        self._interval_s = None if timeout_s is None else timeout_s / _LOOKS
        self._looked_at: float | None = None  # None: nothing is owed
        self._silent_s = 0.0

    @property
    def look_at(self) -> float | None:
        """When to look again even if nothing has happened; None: no need."""
        return None if self._looked_at is None or self._interval_s is None else self._looked_at + self._interval_s

    def look(self, now: float, is_owed: bool, was_heard: bool) -> bool:
        """Say whether it hangs. is_owed: an answer is due; was_heard: there was a sign of life since the last look."""
        if self.timeout_s is None or self._interval_s is None:
            return False
        if not is_owed:
            self._looked_at = None
        elif was_heard or self._looked_at is None:
            self._looked_at, self._silent_s = now, 0.0
        elif now >= self._looked_at + self._interval_s:
            self._silent_s += min(now - self._looked_at, 2 * self._interval_s)
            self._looked_at = now
        return self._looked_at is not None and self._silent_s >= self.timeout_s


_LOOKS = 8  # within the time-out
