"""How many guesses are made: less often right or in a larger batch, fewer."""

from __future__ import annotations

import random

import pytest

from octavo.speculative.draft_lengths import DraftLengths, StepCosts


def after(outcomes: list[bool], batch_size: int = 1, fixed_share: float = 6.0, **options) -> int:
    lengths = DraftLengths(64, 16, StepCosts(fixed_share), **options)
    for outcome in outcomes:
        lengths.observe(0, [1], [1 if outcome else 2])
    return lengths.lengths(range(batch_size))[0]


def test_guesses_that_come_true_are_made_more():
    assert after([False] * 20) == 0 < after([]) < after([True] * 8) < after([True] * 40) == 16


def test_a_row_that_was_wrong_recovers_while_nothing_of_it_is_computed():
    assert after([False] * 20 + [True] * 12) > 1


def test_large_batches_guess_less():
    limits = [after([True] * 12, batch_size) for batch_size in (1, 4, 16, 64)]
    assert limits == sorted(limits, reverse=True) and limits[0] > limits[2] and limits[-1] == 0


def test_where_every_token_costs_as_much_as_a_step_nothing_is_guessed_that_is_not_almost_sure():
    assert after([True] * 12, fixed_share=0.0) == 0


def test_only_the_first_wrong_guess_counts_and_what_was_not_reached_does_not():
    lengths = DraftLengths(2, 16, StepCosts(6.0))
    lengths.observe(0, [1, 9, 9, 9], [1, 2])
    lengths.observe(1, [1], [1, 5])
    lengths.observe(1, [9], [2])
    assert lengths.lengths([0]) == lengths.lengths([1])


def test_the_users_limits_hold_and_a_row_starts_afresh():
    limits = [(1, 2, 3), (4, 100, 0)]
    assert [after([True] * 40, size, limits=limits) for size in (1, 2, 3, 4)][:2] == [3, 3]
    assert after([True] * 40, 3, limits=limits) > 3 and after([True] * 40, 4, limits=limits) == 0
    lengths = DraftLengths(1, 16, StepCosts(6.0))
    first = lengths.lengths([0])
    for _ in range(30):
        lengths.observe(0, [1], [1])
    lengths.add(0)
    assert lengths.lengths([0]) == first


def test_in_a_batch_where_only_sure_guesses_gain_anything_none_are_made():
    lengths = DraftLengths(64, 16, StepCosts(6.0), limits=[(3, 4, 0)])
    assert [lengths.pays(size) for size in (1, 2, 3, 8, 32, 64)] == [True, True, False, True, False, False]
    assert not DraftLengths(64, 16, StepCosts(6.0, guess=5.0)).pays(1)


def test_guesses_that_cost_something_are_tried_rarely_and_go_on_while_they_are_right():
    """As much as 0.72 is needed here: no row begins with that."""
    lengths = DraftLengths(8, 16, StepCosts(3.0, guess=1.5))
    assert lengths.pays(1)
    lengths.add(0)
    trials = 0
    for _ in range(400):
        if lengths.lengths([0]) == [1]:
            trials += 1
            lengths.observe(0, [1], [2])
    assert trials > 4 and (trials - 1) * (1 + 1.5) / (1 + 3.0) < 0.013 * 400
    while lengths.lengths([0]) == [0]:
        pass
    for _ in range(30):
        lengths.observe(0, [1], [1])
        assert lengths.lengths([0])[0] > 0


def test_few_sure_rows_do_not_let_a_large_batch_wait_for_a_step_that_guesses():
    costs, rows = StepCosts(20.0, guess=2.0), range(32)

    def num_guessing(num_sure: int) -> int:
        lengths = DraftLengths(32, 16, costs)
        for _ in range(60):
            for row in rows[:num_sure]:
                lengths.observe(row, [1], [1])
        return sum(length > 0 for length in lengths.lengths(rows))

    assert num_guessing(1) == num_guessing(3) == 0
    assert [num_guessing(number) for number in (12, 32)] == [12, 32]
    lengths = DraftLengths(32, 16, costs)
    for row in rows:
        for _ in range(60):
            lengths.observe(row, [1], [1])
        for _ in range(0 if row < 2 else 2):
            lengths.observe(row, [1], [2])
    assert lengths.lengths([0]) == [16]
    assert lengths.lengths(rows) == [1] * 32, "two rows alone go no further than the others"


@pytest.mark.parametrize("share_right", [0.0, 0.3, 0.6, 0.7])
@pytest.mark.parametrize("costs", [StepCosts(20.0, guess=2.0), StepCosts(64.0, guess=30.0)])
def test_what_a_batch_loses_by_trials_is_bounded(costs, share_right):
    """In units of what a token adds to a step: what guesses cost, less the steps that right ones save."""
    rows, chance = range(32), random.Random(share_right)
    lengths = DraftLengths(32, 16, costs)
    for row in rows:
        lengths.add(row)
    num_steps, cost, saved = 4000, 0.0, 0
    for _ in range(num_steps):
        made = lengths.lengths(rows)
        cost += sum(made) + max(made) * costs.guess
        for row, length in zip(rows, made, strict=True):
            outcomes = [chance.random() < share_right for _ in range(length)]
            saved += [*outcomes, False].index(False)
            lengths.observe(row, [1] * length, [1 if outcome else 2 for outcome in outcomes])
    step = 32 + costs.fixed
    at_start = 32 * (1 + costs.guess)
    assert cost - saved * step / 32 < 0.013 * num_steps * step + at_start
