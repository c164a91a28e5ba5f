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
    # nearly every step: one token each
    is_plain = sum(num_scheduled_tokens.values()) == num_requests
    counts = None if is_plain else np.fromiter(num_scheduled_tokens.values(), np.int32, num_requests)
    flat = flatten(row_index, computed, counts, rows.token_ids, block_tables)
    return StepInputs(
        request_ids=request_ids,
        rows=row_index,
        query_start=flat.query_start,
        token_ids=flat.token_ids,
        positions=flat.positions,
        metadata=flat.metadata,
        samples=flat.seq_lens >= rows.num_tokens[row_index],
    )


@dataclass(slots=True)
class FlatTokens:
    """Tokens of several rows one after another; see StepInputs. seq_lens: [R], with them"""

    query_start: Int
    token_ids: Int
    positions: Int
    metadata: list[AttentionMetadata]
    seq_lens: Int


def flatten(
    rows: NDArray[np.intp], begins: Int, counts: Int | None, token_ids: Int, block_tables: Sequence[BlockTable]
) -> FlatTokens:
    """Gather each row's next tokens.

    begins, counts: [R] int32, the first position of each and how many, None for one each; token_ids: those of all rows
    """
    if counts is None:
        query_start = np.arange(len(rows) + 1, dtype=np.int32)
        seq_lens = begins + np.int32(1)
        token_rows, positions = rows, begins
    else:
        query_start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        seq_lens = begins + counts
        token_rows = np.repeat(rows, counts)
        # position = begin + (index in the batch - start of the row)
        positions = np.arange(query_start[-1], dtype=np.int32) + np.repeat(begins - query_start[:-1], counts)
    max_seq_len = max(seq_lens.tolist())
    metadata = [
        AttentionMetadata(
            query_start=query_start,
            seq_lens=seq_lens,
            block_table=table.gather(rows, max_seq_len),
            slot_mapping=table.slots(token_rows, positions),
        )
        for table in block_tables
    ]
    if not metadata:
        metadata.append(metadata_without_cache(query_start))
    return FlatTokens(query_start, token_ids[token_rows, positions], positions, metadata, seq_lens)


def metadata_without_cache(query_start: Int) -> AttentionMetadata:
    """Return what tells the layers of a model without a cache where each request's tokens begin."""
    num_rows = len(query_start) - 1
    return AttentionMetadata(
        query_start=query_start,
        seq_lens=np.diff(query_start).astype(np.int32),
        block_table=np.zeros((num_rows, 1), np.int32),
        slot_mapping=np.zeros(query_start[-1], np.int64),
    )
