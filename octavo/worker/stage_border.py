"""What a stage of a pipeline gets from the one before and gives to the next: hidden states [T, H] of every step."""

from __future__ import annotations

import numpy as np

from octavo.distributed.group import Group
from octavo.ops.interface import Float


class StageBorder:
    """One worker's place in the pipeline. group: the workers of all stages, in order."""

    def __init__(self, group: Group, hidden_size: int) -> None:
        self.group = group
        self.hidden_size = hidden_size
        self.is_first = group.rank == 0
        self.is_last = group.rank == group.size - 1

    def empty(self, num_tokens: int) -> Float | None:
        """Return an array for what comes from the stage before; None in the first stage."""
        return None if self.is_first else np.zeros((num_tokens, self.hidden_size), np.float32)

    def receive(self, num_tokens: int) -> Float | None:
        """Wait for the hidden states of a step; None in the first stage. Raises PeerLostError."""
        hidden = self.empty(num_tokens)
        if hidden is not None:
            self.group.receive(hidden)
        return hidden

    def send(self, hidden: Float) -> None:
        """Give the step's hidden states to the next stage. Raises PeerLostError."""
        self.group.send(hidden)
