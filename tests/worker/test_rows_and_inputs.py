"""Rows are taken and given up exactly; flat inputs match a token-by-token oracle."""

import random

import numpy as np

from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData
from octavo.worker.block_table import BlockTable
from octavo.worker.input_builder import build_inputs
from octavo.worker.request_rows import RequestRows


def new_request(request_id: str, token_ids: list[int], num_prompt_tokens: int | None = None, computed: int = 0):
    return NewRequestData(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens or len(token_ids),
        sampling_params=SamplingParams(),
        seed=0,
        eos_token_id=None,
        stop_token_ids=[],
        block_ids=([],),
        num_computed_tokens=computed,
    )


def test_a_row_given_up_is_used_again_and_others_keep_theirs():
    rows = RequestRows(max_num_seqs=2, max_model_len=8)
    first = rows.add(new_request("a", [1, 2]))
    second = rows.add(new_request("b", [3]))
    assert rows.remove("a") == first
    assert rows.add(new_request("c", [4, 5, 6])) == first
    assert rows.row("b") == second and "a" not in rows and len(rows) == 2
    assert rows.token_ids[first, :3].tolist() == [4, 5, 6]


def test_appending_to_a_full_row_counts_the_token_and_stays_in_bounds():
    rows = RequestRows(max_num_seqs=1, max_model_len=2)
    row = rows.add(new_request("a", [1, 2]))
    rows.append_tokens(np.array([row]), np.array([9], np.int32))
    assert rows.num_tokens[row] == 3 and rows.token_ids[row, :2].tolist() == [1, 2]


def test_a_cleared_block_table_row_holds_no_old_blocks():
    table = BlockTable(max_num_seqs=1, max_model_len=64, block_size=16)
    table.append(0, [5, 6, 7])
    table.clear(0)
    table.append(0, [9])
    assert table.gather(np.array([0]), 64).tolist() == [[9, 0, 0, 0]]


def test_flat_inputs_equal_a_token_by_token_oracle():
    rng = random.Random(0)
    for _ in range(50):
        block_size, max_len = rng.choice([1, 4, 16]), 64
        rows = RequestRows(8, max_len)
        tables = [BlockTable(8, max_len, block_size) for _ in range(2)]
        blocks = list(range(1, 8 * max_len * 2 + 1))
        rng.shuffle(blocks)
        scheduled: dict[str, int] = {}
        expected: dict[str, list] = {"tokens": [], "positions": [], "slots0": [], "slots1": [], "samples": []}
        for index in rng.sample(range(8), rng.randint(1, 8)):
            num_tokens = rng.randint(1, max_len)
            computed = rng.randint(0, num_tokens - 1)
            count = rng.randint(1, num_tokens - computed)
            tokens = [rng.randrange(100) for _ in range(num_tokens)]
            request_id = f"r{index}"
            row = rows.add(new_request(request_id, tokens, computed=computed))
            owned = [[blocks.pop() for _ in range(-(-num_tokens // block_size))] for _ in tables]
            for table, ids in zip(tables, owned, strict=True):
                table.append(row, ids)
            scheduled[request_id] = count
            for position in range(computed, computed + count):
                expected["tokens"].append(tokens[position])
                expected["positions"].append(position)
                for group, ids in enumerate(owned):
                    expected[f"slots{group}"].append(ids[position // block_size] * block_size + position % block_size)
            expected["samples"].append(computed + count == num_tokens)
        inputs = build_inputs(scheduled, rows, tables)
        assert inputs.token_ids.tolist() == expected["tokens"]
        assert inputs.positions.tolist() == expected["positions"]
        assert inputs.samples.tolist() == expected["samples"]
        assert [m.slot_mapping.tolist() for m in inputs.metadata] == [expected["slots0"], expected["slots1"]]
        assert np.diff(inputs.query_start).tolist() == list(scheduled.values())
        assert all(m.block_table.flags.c_contiguous for m in inputs.metadata)
