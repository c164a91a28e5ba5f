"""Log-probabilities of a prompt's own tokens, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.ops.interface import Float, Int, Ops
from octavo.sampling.logprobs import pack
from octavo.types.messages import PackedLogprobs


def prompt_logprobs(ops: Ops, logits: Float, target_ids: Int, k: int) -> PackedLogprobs:
    """Return, per position, the prompt's next token and the k most likely: logits [N, V], target_ids [N]."""
    return pack(*ops.top_logprobs(logits, target_ids, k))


def join_prompt_logprobs(parts: Sequence[PackedLogprobs], k: int) -> PackedLogprobs:
    """Join the chunks of one prompt in order; no chunks give no positions. k: as given to `prompt_logprobs`."""
    return PackedLogprobs(
        num_positions=sum(part.num_positions for part in parts),
        num_candidates=k + 1,
        token_ids=b"".join(part.token_ids for part in parts),
        logprobs=b"".join(part.logprobs for part in parts),
        ranks=b"".join(part.ranks for part in parts),
    )
