"""Which tokens end an answer."""

from __future__ import annotations

import pytest

from octavo.loader.end_of_generation import find_end_of_generation_ids

CASES = [
    # (tokens, ids of control tokens, roles, ends)
    (["a", "</s>"], {1}, {"eos": 1}, (1,)),
    (["<|im_end|>", "<|endoftext|>", "a"], {0, 1}, {"eos": 1}, (1, 0)),
    (["<eos>", "<end_of_turn>", "</s>"], {0, 1}, {"eos": 0}, (0, 1)),  # Gemma: </s> is HTML there
    (["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], {0, 1, 2}, {"eos": 2, "eot": 0}, (2, 0, 1)),
    (["<|im_end|>", "a"], set(), {}, (0,)),  # files mislabel end-of-turn tokens as normal ones
    (["x", "y"], set(), {"eos": 0, "eot": 1, "eom": 1}, (0, 1)),
    (["<|return|>", "<|call|>", "<|end|>"], {0, 1, 2}, {"eos": 0}, (0, 1)),  # harmony: <|end|> ends a message only
    (["<|flush|>", "<|calls|>", "<|end|>"], {0, 1, 2}, {"eos": 0}, (0, 1)),
    (["<|end|>", "<|assistant|>"], {0, 1}, {"eos": 0}, (0,)),
    (["a"], set(), {}, ()),
]


@pytest.mark.parametrize(("tokens", "control_ids", "roles", "expected"), CASES)
def test_ends_of_known_vocabularies(tokens, control_ids, roles, expected):
    assert find_end_of_generation_ids(tokens, control_ids, roles) == expected
