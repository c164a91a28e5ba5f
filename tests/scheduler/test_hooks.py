"""Grammars, on a fake."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequestError
from octavo.scheduler.request import RequestStatus
from octavo.types.grammar import GrammarProgress, GrammarSpec
from octavo.types.messages import PackedLogprobs
from octavo.types.request import OWN_FAULTS, FinishReason
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import GrammarOutput, ModelRunnerOutput
from tests.scheduler.helpers import answer, assert_all_free, check_invariants, make_request, make_scheduler, step


class FakeGrammar:
    """Compiles when told to; allows even tokens only; ends with the tokens of `last`."""

    def __init__(self):
        self.ready: set[str] = set()
        self.broken: set[str] = set()
        self.last: set[int] = set()
        self.forbidden: set[int] = set()
        self.accepted: list[tuple[str, int]] = []
        self.started: list[list[str]] = []
        self.released: list[str] = []
        self.slow: set[str] = set()
        self.late: list[str] = []
        self.pondering: set[str] = set()

    def is_ready(self, request):
        if request.request_id in self.broken:
            raise InvalidRequestError("the pattern does not compile")
        return request.request_id in self.ready

    def take_ready(self):
        return [*self.ready, *self.broken]

    def may_run(self, request):
        return request.request_id not in self.slow

    def start_masks(self, request_ids, drafts):
        self.started.append(list(request_ids))

    def bitmask(self, request_ids, drafts):
        in_time = [name for name in request_ids if name not in self.late]
        rows = b"".join(name.encode() * (1 + len(drafts.get(name, ()))) for name in in_time)
        return GrammarOutput(in_time, rows, [name for name in request_ids if name in self.late])

    def begin_accept(self, request, token_id):
        return request.request_id not in self.pondering

    def accept(self, request, token_id):
        self.accepted.append((request.request_id, token_id))
        if token_id in self.forbidden:
            return GrammarProgress.REJECTED
        return GrammarProgress.COMPLETE if token_id in self.last else GrammarProgress.CONTINUES

    def error(self, request):
        return "expected something else"

    def valid_drafts(self, request, token_ids):
        valid = []
        for token_id in token_ids:
            if token_id % 2:
                break
            valid.append(token_id)
        return valid

    def release(self, request):
        self.released.append(request.request_id)


def structured(name, length=4, **fields):
    request = make_request(name, length, params=SamplingParams(max_tokens=4), **fields)
    request.grammar = GrammarSpec("guidance", "lark", "start: /a+/")
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return request


def test_request_waits_for_its_grammar_and_others_go_first():
    grammar = FakeGrammar()
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    scheduler.add_request(make_request("plain", 4))
    output, _ = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["plain"]
    assert scheduler.requests["s"].status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    assert scheduler.get_grammar_bitmask(output) is None
    grammar.ready.add("s")
    output, _ = step(scheduler)
    assert set(output.num_scheduled_tokens) == {"plain", "s"}
    assert grammar.accepted == [("s", 7)]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_requests_are_asked_for_their_grammars_once_until_these_come_and_keep_their_places(policy):
    grammar = FakeGrammar()
    asked = []
    grammar.is_ready = lambda request: asked.append(request.request_id) or request.request_id in grammar.ready
    scheduler = make_scheduler(hooks={"grammar": grammar}, policy=policy, max_num_seqs=2)
    for name in ("a", "b", "c", "d"):
        scheduler.add_request(structured(name))
    for _ in range(3):
        assert step(scheduler)[0].num_scheduled_tokens == {}
    assert asked == ["a", "b", "c", "d"] and scheduler.make_stats().num_waiting == 4
    scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    grammar.ready |= {"b", "c", "d", "a"}
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["a", "c"]
    assert asked[4:] == ["a", "c"]


def test_request_whose_mask_takes_long_sits_out_and_others_go_on():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    scheduler.add_request(make_request("plain", 4, params=SamplingParams(max_tokens=50)))
    step(scheduler)
    grammar.slow.add("s")
    for _ in range(3):
        output, _ = step(scheduler)
        assert list(output.num_scheduled_tokens) == ["plain"]
    grammar.slow.clear()
    output, _ = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["s", "plain"], "it keeps its place"


def late_step(scheduler, grammar, *late, drafts=None):
    """Run a step in which the masks of some are not there in time; return what was scheduled and the messages."""
    grammar.late = list(late)
    output = scheduler.schedule()
    masks = scheduler.get_grammar_bitmask(output)
    results = answer(scheduler, output)
    for name in late:
        results.sampled_token_ids.pop(name, None)
    results.draft_token_ids = drafts or {}
    messages = scheduler.update_from_output(output, results).outputs
    check_invariants(scheduler)
    grammar.late = []
    return output, masks, {message.request_id: message for message in messages}


@pytest.mark.parametrize("length", [4, 5, 7])
def test_request_whose_mask_is_late_gets_its_token_in_a_later_step(length):
    """At the end of its prompt, and later, at every place in a block of 4."""
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s", length))
    scheduler.add_request(make_request("plain", 4, params=SamplingParams(max_tokens=50)))
    for num_tokens in range(4):
        output, masks, messages = late_step(scheduler, grammar, "s")
        assert (masks.request_ids, masks.late_request_ids) == ([], ["s"]) and list(messages) == ["plain"]
        assert output.num_scheduled_tokens["s"] == (1 if num_tokens else length)
        grammar.slow.add("s")  # until the mask is there it sits out
        assert list(step(scheduler)[0].num_scheduled_tokens) == ["plain"]
        grammar.slow.clear()
        output, messages = step(scheduler)
        assert output.num_scheduled_tokens["s"] == 1 and messages["s"].new_token_ids == [7]
    assert messages["s"].finish_reason is FinishReason.LENGTH and len(grammar.accepted) == 4


def test_drafts_of_a_request_whose_mask_is_late_are_given_up():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    late_step(scheduler, grammar, drafts={"s": [2, 4]})
    output, _, messages = late_step(scheduler, grammar, "s")
    assert output.num_scheduled_tokens == {"s": 3} and not messages
    assert scheduler.requests["s"].num_computed_tokens == 4
    output, messages = step(scheduler)
    assert output.num_scheduled_tokens == {"s": 1} and not output.scheduled_spec_tokens
    assert messages["s"].new_token_ids == [7]


def test_preempted_request_waits_for_its_mask_too():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    grammar.slow.add("s")
    assert step(scheduler)[0].num_scheduled_tokens == {}
    grammar.slow.clear()
    assert step(scheduler)[0].num_scheduled_tokens == {"s": 5}


def test_prompt_logprobs_are_delivered_though_the_first_mask_is_late():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    request = structured("s")
    scheduler.add_request(request)
    grammar.late = ["s"]
    output = scheduler.schedule()
    scheduler.get_grammar_bitmask(output)
    packed = PackedLogprobs(1, 1, bytes(4), bytes(4), bytes(4))
    (message,) = scheduler.update_from_output(output, ModelRunnerOutput(prompt_logprobs={"s": packed})).outputs
    assert message.prompt_logprobs is packed and message.new_token_ids == [] and message.finish_reason is None
    assert scheduler.requests["s"].prompt_logprobs_sent


def test_token_that_its_grammar_ponders_is_booked_in_a_later_step():
    grammar = FakeGrammar()
    grammar.ready |= {"s", "gone"}
    scheduler = make_scheduler(hooks={"grammar": grammar})
    for request in (structured("s"), structured("gone"), make_request("plain", 4, max_tokens=9)):
        scheduler.add_request(request)
    grammar.pondering = {"s", "gone"}
    output, messages = step(scheduler, token_id=6)
    assert set(output.num_scheduled_tokens) == {"s", "gone", "plain"} and list(messages) == ["plain"]
    scheduler.finish_requests(["gone"], RequestStatus.FINISHED_ABORTED)
    for _ in range(2):
        output, messages = step(scheduler)
        assert list(output.num_scheduled_tokens) == list(messages) == ["plain"] and not grammar.accepted
    grammar.pondering.clear()
    output, messages = step(scheduler)
    assert list(output.num_scheduled_tokens) == ["plain"] and messages["s"].new_token_ids == [6]
    assert grammar.accepted == [("s", 6)]
    assert step(scheduler)[0].num_scheduled_tokens == {"s": 1, "plain": 1}


def test_token_that_its_grammar_ponders_survives_a_preemption():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    grammar.pondering = {"s"}
    step(scheduler, token_id=6)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert step(scheduler)[0].num_scheduled_tokens == {}, "it may be there at any time"
    grammar.pondering.clear()
    _, messages = step(scheduler)
    assert messages["s"].new_token_ids == [6]
    assert step(scheduler)[0].num_scheduled_tokens == {"s": 5}


def test_masks_cover_only_structured_requests_that_sample_now():
    grammar = FakeGrammar()
    grammar.ready |= {"s", "long"}
    scheduler = make_scheduler(budget=8, hooks={"grammar": grammar})
    for request in (structured("s"), make_request("plain", 2), structured("long", 9)):
        scheduler.add_request(request)
    output = scheduler.schedule()
    assert grammar.started == [["s"]], "masks are begun before the step is computed"
    assert scheduler.get_grammar_bitmask(output).request_ids == ["s"]
    results = answer(scheduler, output)
    results.draft_token_ids["s"] = [2, 4, 5, 6]
    scheduler.update_from_output(output, results)
    output = scheduler.schedule()
    assert output.scheduled_spec_tokens == {"s": [2, 4]}, "drafts that the grammar forbids are dropped"
    assert scheduler.get_grammar_bitmask(output).bitmask == b"sss"


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_request_ends_with_its_grammar_even_at_its_limit(max_tokens):
    grammar = FakeGrammar()
    grammar.ready.add("s")
    grammar.last.add(7)
    scheduler = make_scheduler(hooks={"grammar": grammar})
    request = structured("s")
    request.sampling_params.max_tokens = max_tokens
    scheduler.add_request(request)
    _, messages = step(scheduler)
    assert (messages["s"].finish_reason, messages["s"].stop_reason) == (FinishReason.STOP, None)
    assert messages["s"].new_token_ids == [7]
    assert_all_free(scheduler)


def test_text_that_is_cut_inside_its_grammar_ends_with_length():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    request = structured("s")
    request.sampling_params.max_tokens = 1
    scheduler.add_request(request)
    _, messages = step(scheduler)
    assert messages["s"].finish_reason is FinishReason.LENGTH


def test_end_of_sequence_is_no_token_of_the_grammar():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    grammar.forbidden.add(7)
    scheduler = make_scheduler(hooks={"grammar": grammar})
    request = structured("s")
    request.eos_token_id = 7
    scheduler.add_request(request)
    _, messages = step(scheduler)
    assert messages["s"].finish_reason is FinishReason.STOP
    assert grammar.accepted == []


def test_token_that_the_grammar_rejects_ends_its_request_alone():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    grammar.forbidden.add(7)
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    scheduler.add_request(make_request("plain", 4))
    _, messages = step(scheduler)
    assert messages["s"].finish_reason is FinishReason.ERROR
    # which is no fault of the engine's: the grammar allowed the token, and then met a limit
    assert messages["s"].stop_reason.startswith(OWN_FAULTS) and "expected something else" in messages["s"].stop_reason
    assert messages["s"].new_token_ids == []
    assert messages["plain"].new_token_ids == [7]


def test_grammar_that_does_not_compile_ends_its_request_alone():
    grammar = FakeGrammar()
    grammar.broken.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    scheduler.add_request(make_request("plain", 4, max_tokens=1))
    _, messages = step(scheduler)
    assert (messages["s"].finish_reason, messages["s"].stop_reason) == (
        FinishReason.ERROR,
        "the pattern does not compile",
    )
    assert messages["plain"].finish_reason is FinishReason.LENGTH
    assert grammar.released == ["s"]
    assert_all_free(scheduler)


def test_refusal_is_delivered_when_nothing_else_runs():
    grammar = FakeGrammar()
    grammar.broken.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    output = scheduler.schedule()
    assert scheduler.has_unfinished_requests()
    assert scheduler.update_from_output(output, ModelRunnerOutput()).outputs[0].finish_reason is FinishReason.ERROR
    assert not scheduler.has_unfinished_requests()


def test_aborted_request_has_no_mask():
    grammar = FakeGrammar()
    grammar.ready.add("s")
    scheduler = make_scheduler(hooks={"grammar": grammar})
    scheduler.add_request(structured("s"))
    output = scheduler.schedule()
    scheduler.finish_requests(["s"], RequestStatus.FINISHED_ABORTED)
    assert scheduler.get_grammar_bitmask(output) is None


def test_structured_request_without_grammar_support_is_refused():
    with pytest.raises(InvalidRequestError, match="structured output"):
        make_scheduler().add_request(structured("s"))
