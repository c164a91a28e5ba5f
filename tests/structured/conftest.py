from __future__ import annotations

import pytest

from octavo.structured.guidance import GuidanceBackend
from octavo.structured.limits import GrammarLimits
from tests.structured.vocabularies import small_vocabulary


@pytest.fixture(autouse=True)
def patient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine quick masks are not late either."""
    monkeypatch.setattr("octavo.structured.step_masks._PATIENCE_S", 0.3)


@pytest.fixture(scope="session")
def backend() -> GuidanceBackend:
    return GuidanceBackend(small_vocabulary(), GrammarLimits())
