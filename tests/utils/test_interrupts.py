from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from octavo.utils.interrupts import exit_at_sigterm, held_signals


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    exit_at_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_signals_wait_for_the_end_of_a_block_and_are_not_lost(number: signal.Signals, error: type[BaseException]):
    reached = []
    with pytest.raises(error):
        with held_signals():
            signal.raise_signal(number)
            reached.append("end")
        reached.append("behind")
    assert reached == ["end"]
    with pytest.raises(error):  # and are not held any longer
        signal.raise_signal(number)


def test_handlers_of_the_program_are_left_alone():
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    with held_signals():
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
    assert came == [signal.SIGTERM]
