"""An executor without a model: it follows SchedulerOutput as a worker does and checks every key it would read.

The "key" of a token is a digest of the whole prefix up to it, so that a block shared, overwritten, evicted or freed
wrongly shows as soon as it is read. The next token is a function of the newest digest and the request's seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.types.kv_spec import KVCacheGroupSpec, SlidingWindowSpec
from octavo.types.step import ModelRunnerOutput, NewRequestData, SchedulerOutput

VOCAB_SIZE = 16
EOS = 0


def digest(parent: int, token_id: int) -> int:
    return hash((parent, token_id))


def next_token(prefix_digest: int, seed: int) -> int:
    return hash((prefix_digest, seed, 1)) % VOCAB_SIZE


def solo_run(
    prompt: Sequence[int], seed: int, eos_token_id: int | None, max_tokens: int, max_model_len: int
) -> tuple[list[int], str]:
    """Return the output tokens and finish reason of a request that is alone in the world."""
    state = 0
    for token_id in prompt:
        state = digest(state, token_id)
    output: list[int] = []
    while True:
        token_id = next_token(state, seed)
        output.append(token_id)
        if token_id == eos_token_id:
            return output, "stop"
        if len(output) == max_tokens or len(prompt) + len(output) == max_model_len:
            return output, "length"
        state = digest(state, token_id)


@dataclass
class Row:
    """What a worker keeps of a request."""

    token_ids: list[int]
    tables: list[list[int]]
    num_computed: int
    seed: int
    salt: int
    digests: list[int] = field(default_factory=list)

    def extend_digests(self, token_ids: Sequence[int]) -> list[int]:
        """Return the digests of all positions if the sequence were token_ids; keeps those of the common part."""
        del self.digests[len(self.token_ids) :]
        digests = list(self.digests)
        for position in range(len(digests), len(token_ids)):
            digests.append(digest(digests[-1] if digests else 0, token_ids[position]))
        return digests


class FakeExecutor:
    """Runs steps. num_drafts: proposals per sampled token, right or wrong by chance."""

    def __init__(
        self,
        groups: Sequence[KVCacheGroupSpec],
        num_blocks: int,
        salts: dict[str, int],
        num_drafts: int = 0,
        chance: random.Random | None = None,
    ) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.rows: dict[str, Row] = {}
        self.slots: dict[tuple[int, int], tuple[int, int, int]] = {}  # (block, offset) -> (group, salt, digest)
        self.is_spoilt = False  # a step has failed, and what was scheduled after it counts for nothing
        self._salts = salts
        self._num_drafts = num_drafts
        self._chance = chance or random.Random(0)

    def execute(self, output: SchedulerOutput, fails: bool = False) -> ModelRunnerOutput:
        """Run a step. fails: it breaks before anything is stored, so that its blocks keep what was in them."""
        for request_id in [*output.finished_request_ids, *output.preempted_request_ids]:
            del self.rows[request_id]
        for new in output.scheduled_new_requests:
            self._add_row(new)
        self._update_rows(output)
        assert set(output.num_scheduled_tokens) <= set(self.rows)
        if self.is_spoilt:
            for request_id, count in output.num_scheduled_tokens.items():
                self._spoil(self.rows[request_id], count)
            return ModelRunnerOutput()
        if fails:
            self.is_spoilt = True
            return ModelRunnerOutput(failures=dict.fromkeys(output.num_scheduled_tokens, "broken"))
        sequences = {
            request_id: self._store(request_id, output.scheduled_spec_tokens.get(request_id, []), count)
            for request_id, count in output.num_scheduled_tokens.items()
        }
        result = ModelRunnerOutput()
        for request_id, count in output.num_scheduled_tokens.items():
            self._read(self.rows[request_id], sequences[request_id], count)
            self._sample(request_id, output.scheduled_spec_tokens.get(request_id, []), count, result)
        return result

    def _add_row(self, new: NewRequestData) -> None:
        assert new.request_id not in self.rows, f"{new.request_id} already has a row"
        self.rows[new.request_id] = Row(
            list(new.token_ids),
            [list(table) for table in new.block_ids],
            new.num_computed_tokens,
            new.seed,
            self._salts.get(new.request_id, 0),
        )

    def _update_rows(self, output: SchedulerOutput) -> None:
        cached = output.scheduled_cached_requests
        for request_id, blocks, computed in zip(
            cached.request_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            row = self.rows[request_id]
            assert row.num_computed == computed or self.is_spoilt, f"worker has {row.num_computed}, told {computed}"
            for table, new_blocks in zip(row.tables, blocks or ([],) * len(row.tables), strict=True):
                table.extend(new_blocks)

    def _store(self, request_id: str, drafts: list[int], count: int) -> list[int]:
        row = self.rows[request_id]
        end = row.num_computed + count
        assert count > 0
        assert end <= len(row.token_ids) + len(drafts), f"{request_id}: {count} tokens scheduled that do not exist"
        assert not drafts or end == len(row.token_ids) + len(drafts)
        row.digests = row.extend_digests(row.token_ids)
        digests = row.extend_digests([*row.token_ids, *drafts])
        for group_id, group in enumerate(self.groups):
            for position in range(row.num_computed, end):
                block_id = row.tables[group_id][position // group.spec.block_size]
                assert 0 < block_id < self.num_blocks, f"{request_id}: position {position} has no block"
                self.slots[block_id, position % group.spec.block_size] = (group_id, row.salt, digests[position])
        return digests

    def _spoil(self, row: Row, count: int) -> None:
        for group_id, group in enumerate(self.groups):
            for position in range(row.num_computed, row.num_computed + count):
                block_id = row.tables[group_id][position // group.spec.block_size]
                self.slots[block_id, position % group.spec.block_size] = (group_id, row.salt, 0)

    def _read(self, row: Row, digests: list[int], count: int) -> None:
        """Check every key that the queries at num_computed .. num_computed + count - 1 see."""
        for group_id, group in enumerate(self.groups):
            size = group.spec.block_size
            window = group.spec.sliding_window if isinstance(group.spec, SlidingWindowSpec) else 10**9
            for position in range(max(row.num_computed - window + 1, 0), row.num_computed + count):
                block_id = row.tables[group_id][position // size]
                assert block_id != 0, f"group {group_id}: position {position} is read but its block is gone"
                found = self.slots[block_id, position % size]
                assert found == (group_id, row.salt, digests[position]), f"group {group_id}: wrong key at {position}"

    def _sample(self, request_id: str, drafts: list[int], count: int, result: ModelRunnerOutput) -> None:
        row = self.rows[request_id]
        num_known = len(row.token_ids)
        if row.num_computed + count < num_known:
            row.num_computed += count
            return
        sampled = []
        state = row.digests[-1]
        for draft in [*drafts, None]:
            token_id = next_token(state, row.seed)
            sampled.append(token_id)
            if draft != token_id:
                break
            state = digest(state, token_id)
        row.token_ids.extend(sampled)
        row.num_computed = num_known + len(sampled) - 1
        result.sampled_token_ids[request_id] = sampled
        if self._num_drafts:
            result.draft_token_ids[request_id] = self._propose(digest(state, sampled[-1]), row.seed)

    def _propose(self, state: int, seed: int) -> list[int]:
        proposals = []
        for _ in range(self._chance.randint(0, self._num_drafts)):
            right = self._chance.random() < 0.7
            proposals.append(next_token(state, seed) if right else self._chance.randrange(VOCAB_SIZE))
            state = digest(state, proposals[-1])
        return proposals
