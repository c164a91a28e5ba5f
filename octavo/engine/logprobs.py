"""Log-probabilities of one request: from the core's packed arrays to what the user reads."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np

from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.messages import PackedLogprobs
from octavo.types.outputs import Logprob, LogprobsOnePosition, PromptLogprobs, SampleLogprobs


class TokenTexts:
    """The text that a token adds at its place, with a cache over the vocabulary; one per engine.

    A token may hold part of a character. Its text is then what its bytes complete together with the bytes before it:
    empty for the first part, the whole character for the last, so the texts of a sequence join to its text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._at_boundary: dict[int, tuple[str, bytes]] = {}  # token id -> text and rest with nothing before it

    def after(self, pending: bytes, token_id: int) -> tuple[str, bytes]:
        """Return the text that `token_id` adds after the incomplete bytes `pending`, and the bytes then incomplete."""
        if pending:
            return _decode_complete(pending + self._tokenizer.token_bytes(token_id))
        known = self._at_boundary.get(token_id)
        if known is None:
            known = self._at_boundary[token_id] = _decode_complete(self._tokenizer.token_bytes(token_id))
        return known

    def pending_after(self, token_ids: Sequence[int]) -> bytes:
        """Return the incomplete bytes at the end of a sequence."""
        pending = b""
        for token_id in token_ids[-_MAX_CHARACTER_BYTES:]:
            _, pending = self.after(pending, token_id)
        return pending


class LogprobsState:
    """Collects the log-probabilities of one sequence, packed until they are read.

    texts: None when nothing is detokenised
    candidates_are_top: the candidates besides the sampled token are the most likely ones, in order
    """

    __slots__ = ("_backlog", "_pending", "_positions", "_ranks_known", "_sum_logprob", "_texts")

    def __init__(self, texts: TokenTexts | None, prompt_token_ids: Sequence[int], candidates_are_top: bool) -> None:
        self._texts = texts
        self._pending = texts.pending_after(prompt_token_ids) if texts else b""
        self._ranks_known = candidates_are_top
        self._backlog: list[tuple[PackedLogprobs, int]] = []  # steps not yet unpacked, and their positions that count
        self._positions: SampleLogprobs = []
        self._sum_logprob = 0.0

    def add(self, packed: PackedLogprobs, num_positions: int) -> None:
        """Take the first `num_positions` of a step's positions."""
        self._backlog.append((packed, num_positions))

    @property
    def cumulative_logprob(self) -> float:
        """The sum over the sampled tokens."""
        self._unpack_backlog()
        return self._sum_logprob

    def read(self, delta: bool) -> SampleLogprobs:
        """Return all positions, or (delta) those since the last call; a sequence is read in one way only."""
        self._unpack_backlog()
        positions = self._positions
        if delta:
            self._positions = []
            return positions
        return positions.copy()

    def _unpack_backlog(self) -> None:
        for packed, num_positions in self._backlog:
            positions, self._pending = unpack_logprobs(
                packed, self._texts, self._pending, num_positions, self._ranks_known
            )
            self._positions.extend(positions)
            for position in positions:  # one by one: the sum must not depend on how many came in a step
                self._sum_logprob += next(iter(position.values())).logprob
        self._backlog.clear()


def unpack_prompt_logprobs(
    packed: PackedLogprobs, texts: TokenTexts | None, prompt_token_ids: Sequence[int]
) -> PromptLogprobs:
    """Return one entry per prompt token; the first has none, for nothing predicts it."""
    pending = texts.pending_after(prompt_token_ids[:1]) if texts else b""
    positions, _ = unpack_logprobs(packed, texts, pending, packed.num_positions, ranks_known=True)
    return [None, *positions]


def unpack_logprobs(
    packed: PackedLogprobs, texts: TokenTexts | None, pending: bytes, num_positions: int, ranks_known: bool
) -> tuple[SampleLogprobs, bytes]:
    """Return the first `num_positions`, the sampled token first in each, and the incomplete bytes after the last.

    ranks_known: the candidates after the first are the top ones in order
    """
    shape = (packed.num_positions, packed.num_candidates)
    token_ids = np.frombuffer(packed.token_ids, dtype="<i4").reshape(shape)[:num_positions].tolist()
    logprobs = np.frombuffer(packed.logprobs, dtype="<f4").reshape(shape)[:num_positions].tolist()
    ranks = np.frombuffer(packed.ranks, dtype="<i4")[:num_positions].tolist()
    positions: SampleLogprobs = []
    for ids, values, rank in zip(token_ids, logprobs, ranks, strict=True):
        positions.append(_one_position(ids, values, rank, texts, pending, ranks_known))
        if texts is not None:
            _, pending = texts.after(pending, ids[0])
    return positions, pending


def _one_position(
    token_ids: list[int],
    logprobs: list[float],
    first_rank: int,
    texts: TokenTexts | None,
    pending: bytes,
    ranks_known: bool,
) -> LogprobsOnePosition:
    position: LogprobsOnePosition = {}
    for column, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        if token_id in position:  # the first candidate is among the top ones too
            continue
        rank = first_rank if column == 0 else column if ranks_known else None
        position[token_id] = Logprob(logprob, rank, texts.after(pending, token_id)[0] if texts else None)
    return position


def _decode_complete(data: bytes) -> tuple[str, bytes]:
    """Decode the complete characters of UTF-8 bytes (invalid ones become U+FFFD); return them and the rest."""
    text, num_used = codecs.utf_8_decode(data, "replace", False)
    return text, data[num_used:]


_MAX_CHARACTER_BYTES = 4
