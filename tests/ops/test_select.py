"""Which backend, instruction set and number of threads are chosen, and what is said when the choice is a poor one."""

from __future__ import annotations

import logging

import pytest

from octavo.errors import ConfigError
from octavo.ops import select

try:
    from octavo import _native
except ImportError:
    _native = None  # type: ignore[assignment]

needs_native = pytest.mark.skipif(_native is None, reason="the native extension is not built")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    for name in ("OCTAVO_OPS", "OCTAVO_ISA", "OCTAVO_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    if _native is not None:
        _native.set_isa(_native.available_isas()[-1])


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("octavo"), "propagate", True)
    return caplog


@needs_native
def test_native_ops_with_the_best_instruction_set_are_the_default(warnings: pytest.LogCaptureFixture) -> None:
    _native.set_isa("portable")
    assert select.select_ops().name == "native"
    assert _native.isa() == _native.available_isas()[-1]
    assert warnings.text == ""


@needs_native
@pytest.mark.parametrize("isa", [] if _native is None else _native.available_isas())
def test_a_lower_instruction_set_can_be_forced(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ISA", isa)
    assert select.select_ops().name == "native"
    assert _native.isa() == isa
    facts = select.native_facts()
    assert facts is not None and facts.isa == isa and isa in facts.available_isas


@needs_native
def test_an_unknown_or_unavailable_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ISA", "avx9")
    with pytest.raises(ConfigError, match=r"OCTAVO_ISA must be one of portable.*got 'avx9'"):
        select.select_ops()
    monkeypatch.setenv("OCTAVO_ISA", "avx512")
    monkeypatch.setattr(_native, "available_isas", lambda: ["portable"])
    with pytest.raises(ConfigError, match="OCTAVO_ISA must be one of portable on this machine"):
        select.select_ops()


@needs_native
def test_the_number_of_threads_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "3")
    select.select_ops()
    assert _native.num_threads() == 3
    for wrong in ("0", "many", "1025", "99999999999"):
        monkeypatch.setenv("OCTAVO_NUM_THREADS", wrong)
        with pytest.raises(ConfigError, match="OCTAVO_NUM_THREADS"):
            select.select_ops()


@needs_native
def test_an_extension_that_is_older_than_its_callers_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old:
        """The extension as it was before two functions came."""

        __file__ = "/somewhere/_native.so"
        WeightBuilder = object

        def __getattr__(self, name: str) -> object:
            if name == "paged_attention":
                raise AttributeError(name)
            return getattr(_native, name)

    import octavo

    monkeypatch.setattr(octavo, "_native", Old())
    with pytest.raises(ConfigError, match=r"older .* lacks .*WeightBuilder\.pack, .*paged_attention.*scripts/build"):
        select.select_ops()


def test_the_reference_can_be_forced_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OCTAVO_OPS", "reference")
    assert select.select_ops().name == "reference"
    assert warnings.text == ""


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_OPS", "magic")
    with pytest.raises(ConfigError, match="OCTAVO_OPS must be one of native, reference, got 'magic'"):
        select.select_ops()


def test_without_the_extension_numpy_computes_and_a_warning_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select, "_native_is_installed", lambda: False)
    assert select.select_ops().name == "reference"
    assert "batch invariance" in warnings.text and "compiler" in warnings.text
    assert select.native_facts() is None
    monkeypatch.setenv("OCTAVO_OPS", "native")
    with pytest.raises(ConfigError, match="the native extension is not there"):
        select.select_ops()
