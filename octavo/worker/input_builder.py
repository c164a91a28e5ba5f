"""The step's flat inputs, from the scheduler's counts and the rows. No loop over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.ops.interface import AttentionMetadata, Int
from octavo.worker.block_table import BlockTable
from octavo.worker.request_rows import RequestRows


@dataclass(slots=True)
class StepInputs:
    """What one forward needs. Requests keep the scheduler's order.

    request_ids: [R]; rows: [R] row of each; query_start: [R+1]
    token_ids, positions: [T] int32
    metadata: one AttentionMetadata per KV cache group; without groups one that tells sequences apart
    samples: [R] bool, does the request reach its last known token and so get a new one?
    """

    request_ids: list[str]
    rows: NDArray[np.intp]
    query_start: Int
    token_ids: Int
    positions: Int
    metadata: list[AttentionMetadata]
    samples: NDArray[np.bool_]


def build_inputs(
    num_scheduled_tokens: Mapping[str, int], rows: RequestRows, block_tables: Sequence[BlockTable]
) -> StepInputs:
    """Flatten the scheduled tokens of all requests into one batch."""
    request_ids = list(num_scheduled_tokens)
    num_requests = len(request_ids)
    row_index = rows.index(request_ids)
    computed = rows.num_computed_tokens[row_index]
    if sum(num_scheduled_tokens.values()) == num_requests:  # nearly every step: one token each
        query_start = np.arange(num_requests + 1, dtype=np.int32)
        seq_lens = computed + np.int32(1)
        token_rows, positions = row_index, computed
    else:
        counts = np.fromiter(num_scheduled_tokens.values(), np.int32, num_requests)
        query_start = np.zeros(num_requests + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        seq_lens = computed + counts
        token_rows = np.repeat(row_index, counts)
        # position = computed + (index in the batch - start of the request)
        positions = np.arange(query_start[-1], dtype=np.int32) + np.repeat(computed - query_start[:-1], counts)
    max_seq_len = max(seq_lens.tolist())
    metadata = [
        AttentionMetadata(
            query_start=query_start,
            seq_lens=seq_lens,
            block_table=table.gather(row_index, max_seq_len),
            slot_mapping=table.slots(token_rows, positions),
        )
        for table in block_tables
    ]
    if not metadata:
        metadata.append(metadata_without_cache(query_start))
    return StepInputs(
        request_ids=request_ids,
        rows=row_index,
        query_start=query_start,
        token_ids=rows.token_ids[token_rows, positions],
        positions=positions,
        metadata=metadata,
        samples=seq_lens >= rows.num_tokens[row_index],
    )


def metadata_without_cache(query_start: Int) -> AttentionMetadata:
    """Return what tells the layers of a model without a cache where each request's tokens begin."""
    num_rows = len(query_start) - 1
    return AttentionMetadata(
        query_start=query_start,
        seq_lens=np.diff(query_start).astype(np.int32),
        block_table=np.zeros((num_rows, 1), np.int32),
        slot_mapping=np.zeros(query_start[-1], np.int64),
    )
