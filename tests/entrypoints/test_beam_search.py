"""Beam search finds what an exhaustive search finds, with scores, ends and texts as in vLLM."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams
from octavo.errors import InvalidRequestError
from octavo.types.messages import PackedLogprobs
from tests.engine.fakes import EOS, FakeExecutor, fake_engine

LETTERS = b"abc"


def distribution(tokens) -> dict[int, float]:
    """Log-probabilities of the next token, peculiar to what came before; the end gets likelier with length."""
    weights = {letter: 1 + (sum(tokens) * (letter - 90) % 17) for letter in LETTERS}
    weights[EOS] = 2 * len(tokens)
    total = sum(weights.values())
    return {token_id: math.log(weight / total) for token_id, weight in weights.items()}


class BeamExecutor(FakeExecutor):
    """Reports the true top candidates of `distribution`."""

    def _sample(self, request_id, row, output):
        ranked = sorted(distribution(row.token_ids).items(), key=lambda item: -item[1])
        columns = [ranked[0], *ranked, *((200 + i, -99.0) for i in range(row.params.logprobs - len(ranked)))]
        columns = columns[: 1 + row.params.logprobs]
        output.sampled_token_ids[request_id] = [ranked[0][0]]
        output.logprobs[request_id] = PackedLogprobs(
            1,
            len(columns),
            np.array([token_id for token_id, _ in columns], "<i4").tobytes(),
            np.array([value for _, value in columns], "<f4").tobytes(),
            np.array([1], "<i4").tobytes(),
        )


def beam_llm(**changes) -> LLM:
    fake = fake_engine(executor_class=BeamExecutor, **changes)
    return LLM.from_engine(fake.engine)


def exhaustive(prompt: list[int], max_tokens: int, ignore_eos: bool, length_penalty: float):
    """All sequences of up to max_tokens tokens that end at EOS or at max_tokens, best first."""
    found = []
    alphabet = [*LETTERS, EOS]
    for length in range(1, max_tokens + 1):
        for tail in itertools.product(alphabet, repeat=length):
            ended = tail[-1] == EOS and not ignore_eos
            if (EOS in tail[:-1] and not ignore_eos) or (length < max_tokens and not ended):
                continue
            total = sum(distribution([*prompt, *tail[:i]])[tail[i]] for i in range(length))
            size = len(prompt) + length - ended
            found.append((total / size**length_penalty, total, [*prompt, *tail]))
    return sorted(found, key=lambda item: -item[0])


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_wide_beam_finds_the_best_sequences(ignore_eos, length_penalty):
    """With a beam as wide as all sequences nothing is pruned, so the search is exhaustive."""
    prompt, width = [97, 98], 10
    params = BeamSearchParams(beam_width=width, max_tokens=2, ignore_eos=ignore_eos, length_penalty=length_penalty)
    (output,) = beam_llm().beam_search([prompt], params)
    expected = exhaustive(prompt, 2, ignore_eos, length_penalty)[:width]
    assert [sequence.tokens for sequence in output.sequences] == [tokens for _, _, tokens in expected]
    for sequence, (_, total, _) in zip(output.sequences, expected, strict=True):
        assert sequence.cum_logprob == pytest.approx(total, rel=1e-5)
        assert len(sequence.logprobs) == len(sequence.tokens) - len(prompt)


def test_ends_and_texts():
    params = BeamSearchParams(beam_width=4, max_tokens=3)
    (output,) = beam_llm().beam_search("ab", params)
    assert len(output.sequences) == 4
    ended = [sequence for sequence in output.sequences if sequence.finish_reason == "stop"]
    assert ended and all(s.tokens[-1] == EOS and s.stop_reason == EOS for s in ended)
    assert all(s.text == bytes(s.tokens[:-1]).decode() for s in ended)
    running = [sequence for sequence in output.sequences if sequence.finish_reason == "length"]
    assert all(len(s.tokens) == 2 + 3 and s.text == bytes(s.tokens).decode() for s in running)


def test_the_end_token_is_shown_on_demand():
    params = BeamSearchParams(beam_width=4, max_tokens=3, include_stop_str_in_output=True, skip_special_tokens=False)
    (output,) = beam_llm().beam_search("ab", params)
    assert any(sequence.text.endswith("<eos>") for sequence in output.sequences)


def test_many_prompts_give_the_results_of_each_alone_whatever_runs_together():
    params = BeamSearchParams(beam_width=3, max_tokens=4)
    prompts = ["a", "bc", "cab", "abcabc"]
    alone = [beam_llm().beam_search(prompt, params)[0] for prompt in prompts]
    assert beam_llm().beam_search(prompts, params) == alone
    assert beam_llm(max_num_seqs=2).beam_search(prompts, params, concurrency_limit=2) == alone


def test_the_search_ends_at_the_context():
    (output,) = beam_llm(max_model_len=5).beam_search(
        "ab", BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
    )
    assert all(len(sequence.tokens) == 5 for sequence in output.sequences)


def test_the_search_ends_where_the_cache_does():
    """Where the KV cache holds less than max_model_len, a step past its end was refused and took the search with it."""
    (output,) = beam_llm(num_blocks_override=3).beam_search(
        "ab", BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
    )
    assert all(len(sequence.tokens) == 8 for sequence in output.sequences), "two blocks of 4 tokens, and the null block"


def test_what_cannot_work_is_refused_before_anything_runs():
    llm = beam_llm()
    with pytest.raises(InvalidRequestError, match=r"beam_width=11 needs 22 logprobs.*max_logprobs=20"):
        llm.beam_search("ab", BeamSearchParams(beam_width=11, max_tokens=1))
    with pytest.raises(InvalidRequestError, match="concurrency_limit"):
        llm.beam_search("ab", BeamSearchParams(beam_width=1, max_tokens=1), concurrency_limit=0)
    with pytest.raises(InvalidRequestError):
        llm.beam_search(["ab", ""], BeamSearchParams(beam_width=1, max_tokens=1))
    with pytest.raises(InvalidRequestError, match="BeamSearchParams"):
        llm.beam_search("ab", None)
    with pytest.raises(InvalidRequestError, match="lora_request"):
        llm.beam_search("ab", BeamSearchParams(beam_width=1, max_tokens=1), lora_request=object())
    assert not llm.llm_engine.has_unfinished_requests()
