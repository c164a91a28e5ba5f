from __future__ import annotations

import pytest

from octavo.structured.guidance import GuidanceBackend
from octavo.structured.limits import GrammarLimits
from tests.structured.vocabularies import small_vocabulary


@pytest.fixture(scope="session")
def backend() -> GuidanceBackend:
    return GuidanceBackend(small_vocabulary(), GrammarLimits())
