"""A request with a thinking budget and a grammar behind it goes on from any of its tokens to the same end."""

from __future__ import annotations

import msgspec

from octavo import LLM, SamplingParams
from octavo.types.reasoning import ReasoningMarkers
from octavo.types.structured_params import StructuredOutputsParams
from tests.engine.processes import SMALL
from tests.engine.test_recovery import run_core


def test_a_budget_and_a_grammar_go_on_from_any_token(tiny_llama):
    llm = LLM(str(tiny_llama), **SMALL)
    end = llm.get_tokenizer().encode("</think>", add_special_tokens=False)
    params = SamplingParams(temperature=1, seed=5, max_tokens=40, thinking_token_budget=6)
    params.structured_outputs = StructuredOutputsParams(regex="(yes|no), [a-z]{4,8}!")
    params.set_reasoning_markers(ReasoningMarkers([], end, begins_inside=True, answer_token_ids=end))
    (output,) = llm.generate("Hi", params, use_tqdm=False)
    expected = list(output.outputs[0].token_ids)
    assert expected[6 : 6 + len(end)] == end and output.outputs[0].text.endswith("!")
    request = llm.llm_engine.input_processor.process("r", "Hi", params).request
    resubmitted = [
        msgspec.structs.replace(request, request_id=str(count), output_token_ids=expected[:count])
        for count in range(len(expected))
    ]
    results = run_core(llm, resubmitted)
    for count in range(len(expected)):
        new = [token_id for part in results[str(count)] for token_id in part.new_token_ids]
        assert new == expected[count:], count
