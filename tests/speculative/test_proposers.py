"""What ngram and suffix guess, from what they have seen."""

from __future__ import annotations

import random

import pytest

from octavo.speculative.ngram import NgramProposer
from octavo.speculative.suffix import SuffixProposer


def guesses(proposer, row, max_tokens):
    return proposer.propose([row], [max_tokens])[0]


def ngram(token_ids, least=2, most=4):
    proposer = NgramProposer(least, most)
    proposer.add(0, token_ids, len(token_ids))
    return proposer


def suffix(max_depth=24, max_kept=100, factor=2.0, min_share=0.1):
    return SuffixProposer(max_depth, max_kept, factor, min_share)


def test_ngram_copies_what_followed_the_longest_match_last():
    assert guesses(ngram([1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3]), 0, 3) == [4, 9, 2]  # longer beats later
    assert guesses(ngram([5, 2, 3, 4, 9, 6, 2, 3, 7, 8, 2, 3]), 0, 2) == [7, 8]  # later beats earlier
    assert guesses(ngram([1, 2, 3, 4, 5, 6]), 0, 3) == []
    assert guesses(ngram([1, 2, 3, 9, 8, 3]), 0, 3) == []  # one token is below the least size
    assert guesses(ngram([1]), 0, 3) == []


def test_a_text_that_repeats_itself_up_to_its_end_goes_on_so():
    assert guesses(ngram([7, 8, 7, 8, 7, 8]), 0, 5) == [7, 8, 7, 8, 7]


@pytest.mark.parametrize("seed", range(20))
def test_ngram_learns_token_by_token_what_it_would_learn_at_once(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(4) for _ in range(60)]
    grown = ngram(tokens[:1])
    for end in range(2, len(tokens) + 1):
        grown.append(0, tokens[end - 1 : end])
        guessed = guesses(grown, 0, 6)
        assert guessed == guesses(ngram(tokens[:end]), 0, 6) == searched(tokens[:end], 6)


def searched(tokens, max_tokens, least=2, most=4):
    """The definition, by search."""
    for size in range(min(most, len(tokens) - 1), least - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                future = tokens[end:]
                return [future[i % len(future)] for i in range(max_tokens)]
    return []


def test_suffix_takes_the_most_frequent_continuation_of_the_longest_context():
    proposer = suffix(min_share=0.5)
    tokens = [1, 2, 3, 4, 10, 1, 2, 3, 4, 10, 1, 2, 3, 5, 11, 1, 2, 3]
    proposer.add(0, tokens, len(tokens))
    assert guesses(proposer, 0, 6)[:2] == [4, 10]
    proposer.append(0, [5])
    assert guesses(proposer, 0, 2) == [11, 1]


def test_suffix_guesses_no_more_than_the_context_is_worth():
    proposer = suffix(factor=1.0)
    tokens = [*range(10), 50, *range(6, 10)]
    proposer.add(0, tokens, len(tokens))
    assert guesses(proposer, 0, 20) == [50, 6, 7, 8]  # four tokens agree


def test_suffix_knows_past_outputs_but_no_past_prompts():
    proposer = suffix()
    proposer.add(0, [1, 2, 3, 4], 4)
    proposer.append(0, [20, 21, 22, 23, 24, 25])
    proposer.remove(0)
    proposer.add(0, [20, 21, 22, 23], 4)
    assert guesses(proposer, 0, 9) == [24, 25]  # and not beyond the end of that output
    proposer.add(1, [7, 1, 2, 3], 4)
    assert guesses(proposer, 1, 3) == []


def test_suffix_keeps_no_past_outputs_where_none_are_wanted():
    proposer = suffix(max_kept=0)
    proposer.add(0, [1], 1)
    proposer.append(0, [20, 21, 22, 23, 24, 25])
    proposer.remove(0)
    proposer.add(0, [20, 21, 22, 23], 4)
    assert guesses(proposer, 0, 9) == []


def test_suffix_memory_of_past_outputs_is_bounded():
    proposer = suffix(max_kept=10)
    for number in range(1000):
        proposer.add(0, [1], 1)
        proposer.append(0, [number * 10 + place for place in range(8)])
        proposer.remove(0)
    assert proposer._young.num_outputs + proposer._old.num_outputs <= 10
    proposer.add(0, [9990, 9991, 9992, 9993], 4)
    assert guesses(proposer, 0, 2) == [9994, 9995]
    proposer.add(1, [10, 11, 12, 13], 4)
    assert guesses(proposer, 1, 2) == []
