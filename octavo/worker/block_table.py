"""Logical to physical blocks, for the rows of one KV cache group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.ops.kv_layout import ALL_TOKENS, DealtTokens


class BlockTable:
    """Physical block ids [max_num_seqs, max_blocks] int32 by row and logical block; unused entries are 0."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, dealt: DealtTokens = ALL_TOKENS) -> None:
        """dealt: the tokens of a block that this worker keeps."""
        self.block_size = block_size
        self._dealt = dealt
        self._table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self._num_blocks = [0] * max_num_seqs

    def append(self, row: int, block_ids: Sequence[int]) -> None:
        start = self._num_blocks[row]
        self._table[row, start : start + len(block_ids)] = block_ids
        self._num_blocks[row] = start + len(block_ids)

    def clear(self, row: int) -> None:
        self._table[row, : self._num_blocks[row]] = 0
        self._num_blocks[row] = 0

    def gather(self, rows: NDArray[np.intp], max_seq_len: int) -> NDArray[np.int32]:
        """Return the rows' entries [R, ceil(max_seq_len / block_size)], contiguous."""
        return self._table[rows, : -(-max_seq_len // self.block_size)]

    def slots(self, token_rows: NDArray[np.intp], positions: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return each token's physical slot [T]: block id * block_size + offset; 0 for one that is kept elsewhere."""
        blocks, offsets = np.divmod(positions, self.block_size)
        slots: NDArray[np.int64] = self._table[token_rows, blocks] * np.int64(self.block_size // self._dealt.num_parts)
        if self._dealt.num_parts == 1:
            slots += offsets
            return slots
        own: NDArray[np.int64] = np.where(self._dealt.has(offsets), slots + self._dealt.count(offsets), 0)
        return own
