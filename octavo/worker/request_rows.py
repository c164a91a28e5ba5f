"""The requests that hold a row, kept from step to step: their tokens and how many of them are computed.

A row is taken when a request first appears (or returns after a preemption) and given up when it finishes or is
preempted. Everything else in the worker that belongs to a request is indexed by its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.types.step import NewRequestData


class RequestRows:
    """Arrays over rows.

    token_ids: [max_num_seqs, max_model_len + 1] int32, prompt and output so far; the last column takes what never runs
    num_tokens, num_computed_tokens, num_prompt_tokens: [max_num_seqs] int32
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        # zeros and not empty: the system hands out zero pages only when they are touched
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self._row_of: dict[str, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row_of

    def __len__(self) -> int:
        return len(self._row_of)

    def row(self, request_id: str) -> int:
        return self._row_of[request_id]

    def index(self, request_ids: Sequence[str]) -> NDArray[np.intp]:
        """Return the row of each request."""
        return np.fromiter(map(self._row_of.__getitem__, request_ids), np.intp, len(request_ids))

    def add(self, request: NewRequestData) -> int:
        """Give the request a row and copy its tokens."""
        assert request.request_id not in self._row_of, f"request {request.request_id} already has a row"
        row = self._free.pop()
        self._row_of[request.request_id] = row
        num_tokens = len(request.token_ids)
        self.token_ids[row, :num_tokens] = request.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        return row

    def remove(self, request_id: str) -> int:
        """Give up the request's row and return it."""
        row = self._row_of.pop(request_id)
        self._free.append(row)
        return row

    def set_computed(self, request_ids: Sequence[str], num_computed_tokens: Sequence[int]) -> None:
        """Note how many tokens of each request are computed: the scheduler counts, since it may take drafts back."""
        self.num_computed_tokens[self.index(request_ids)] = num_computed_tokens

    def take_tokens(
        self, request_ids: Sequence[str], num_computed_tokens: Sequence[int], token_ids: Sequence[Sequence[int]]
    ) -> None:
        """Note the tokens that follow the computed ones of each request: another pipeline stage has sampled them."""
        for request_id, start, tokens in zip(request_ids, num_computed_tokens, token_ids, strict=True):
            row, end = self._row_of[request_id], start + len(tokens)
            self.token_ids[row, start:end] = tokens
            self.num_tokens[row] = max(self.num_tokens[row], end)

    def append_tokens(self, rows: NDArray[np.intp], token_ids: Sequence[int]) -> None:
        """Append one sampled token to each of the rows; to a full row once."""
        ends = self.num_tokens[rows]
        self.token_ids[rows, ends] = token_ids
        self.num_tokens[rows] = ends + np.int32(1)

    def extend(self, row: int, token_ids: Sequence[int]) -> None:
        """Append sampled tokens to one row, as many as fit."""
        end = int(self.num_tokens[row])
        self.num_tokens[row] = end + len(token_ids)
        fitting = token_ids[: max(self.token_ids.shape[1] - end, 0)]
        self.token_ids[row, end : end + len(fitting)] = fitting

    def fitting(self, rows: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return how many tokens fit behind each row's, of those that are wanted."""
        room = (self.token_ids.shape[1] - self.num_tokens[rows]).tolist() if rows else []
        return [max(min(length, free), 0) for length, free in zip(lengths, room, strict=True)]

    def place_drafts(self, row: int, draft: Sequence[int]) -> None:
        """Put guesses behind a row's tokens, without counting them."""
        end = int(self.num_tokens[row])
        self.token_ids[row, end : end + len(draft)] = draft
