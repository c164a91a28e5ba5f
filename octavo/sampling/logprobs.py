"""Packs log-probabilities: those of sampled tokens in the engine's logprobs mode, and a prompt's, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.interface import Float, Int, Ops
from octavo.types.messages import PackedLogprobs


def top_logprobs(ops: Ops, logits: Float, token_ids: Int, num_logprobs: Int, as_logits: bool) -> list[PackedLogprobs]:
    """Return each row's sampled token and its num_logprobs[r] most likely ids.

    logits: [R, V]; token_ids, num_logprobs: [R]; as_logits: report logits in place of log-probabilities
    """
    packed: list[PackedLogprobs | None] = [None] * len(logits)
    for k in np.unique(num_logprobs).tolist():
        members = np.flatnonzero(num_logprobs == k)
        group = logits if len(members) == len(logits) else logits[members]
        ids, values, ranks = ops.top_logprobs(group, token_ids[members], k)
        if as_logits:
            values = np.take_along_axis(group, ids.astype(np.intp), axis=1)
        for i, member in enumerate(members.tolist()):
            packed[member] = pack(ids[i : i + 1], values[i : i + 1], ranks[i : i + 1])
    return [entry for entry in packed if entry is not None]


def chosen_logprobs(
    ops: Ops, logits: Float, token_id: int, candidates: Sequence[int], as_logits: bool
) -> PackedLogprobs:
    """Return the sampled token and the given candidates of one position; logits: [1, V]."""
    sampled = np.array([token_id], np.int32)
    ids = np.concatenate((sampled, np.array(candidates, np.int32)))[None]
    values = (logits if as_logits else ops.log_softmax(logits))[0, ids]
    _, _, ranks = ops.top_logprobs(logits, sampled, 0)
    return pack(ids, values, ranks)


def pack(ids: Int, values: Float, ranks: Int) -> PackedLogprobs:
    """Pack ids and values [positions, candidates] and ranks [positions]."""
    return PackedLogprobs(
        num_positions=ids.shape[0],
        num_candidates=ids.shape[1],
        token_ids=ids.astype("<i4", copy=False).tobytes(),
        logprobs=values.astype("<f4", copy=False).tobytes(),
        ranks=ranks.astype("<i4", copy=False).tobytes(),
    )


def join(parts: Sequence[PackedLogprobs], num_candidates: int) -> PackedLogprobs:
    """Join the chunks of one prompt in order; no chunks give no positions."""
    return PackedLogprobs(
        num_positions=sum(part.num_positions for part in parts),
        num_candidates=num_candidates,
        token_ids=b"".join(part.token_ids for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        ranks=b"".join(part.ranks for part in parts),
    )
