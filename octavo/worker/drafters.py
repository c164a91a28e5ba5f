"""Which method guesses how, where that needs weights."""

from __future__ import annotations

from octavo.config import OctavoConfig
from octavo.ops.interface import Ops
from octavo.worker.draft_model import DraftModel
from octavo.worker.drafter import Drafter
from octavo.worker.hidden_drafter import HiddenDrafter
from octavo.worker.medusa_drafter import MedusaDrafter

_DRAFTERS: dict[str, type[Drafter]] = {
    "draft_model": DraftModel,
    "medusa": MedusaDrafter,
    "eagle": HiddenDrafter,
    "eagle3": HiddenDrafter,
    "mtp": HiddenDrafter,
}


def make_drafter(config: OctavoConfig, ops: Ops) -> Drafter | None:
    """Return what guesses by the configured method; None where that needs no weights."""
    kind = None if config.speculative is None else _DRAFTERS.get(config.speculative.method)
    return None if kind is None else kind(config, ops)
