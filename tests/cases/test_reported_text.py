"""Reported faults about text: characters split over tokens, special tokens, beginning of sequence, chat templates."""

from __future__ import annotations

import pytest

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from tests.cases.conftest import run, stream

NASTY = "Žluťoučký kůň 🐎🏇 — สวัสดี, 漢字; a\u0301 e\u0301\t\n  x"

pytestmark = pytest.mark.model


def test_random_bytes_never_raise_and_the_text_is_the_decoding_of_the_ids(smol):
    """B013: an 'invalid prefix' in one request aborted the whole batch. B014: split characters were sent as U+FFFD."""
    tokenizer = smol.get_tokenizer()
    special = set(tokenizer.all_special_ids)
    byte_tokens = [i for i in range(320) if i not in special and len(tokenizer.token_bytes(i)) == 1]
    high = [i for i in byte_tokens if tokenizer.token_bytes(i) >= b"\x80"]
    assert len(high) > 60
    params = [
        SamplingParams(temperature=2, seed=seed, max_tokens=48, allowed_token_ids=byte_tokens if seed % 2 else high)
        for seed in range(24)
    ]
    whole = smol.generate(["Bytes:"] * len(params), params, use_tqdm=False)
    streamed = stream(smol, ["Bytes:"] * len(params), params)
    for output, deltas in zip(whole, streamed, strict=True):
        completion = output.outputs[0]
        assert "".join(one.outputs[0].text for one in deltas) == completion.text
        assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        true_bytes = b"".join(tokenizer.token_bytes(token_id) for token_id in completion.token_ids)
        assert completion.text == true_bytes.decode("utf-8", "replace")


@pytest.mark.parametrize("model", ["smol", "gemma"])
def test_no_replacement_character_for_a_character_split_over_tokens(model, request):
    """B014: U+FFFD was sent where a character's bytes came in two tokens."""
    tokenizer = request.getfixturevalue(model).get_tokenizer()
    text = "🐎漢สวั𒀀𓀀"
    detokenizer = tokenizer.detokenizer(tokenizer.encode("Say:"))
    pieces = [detokenizer.push([token_id]) for token_id in tokenizer.encode(text, add_special_tokens=False)]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == text
    assert any(piece == "" for piece in pieces[:-1]), "some character must be split for this test to mean something"


@pytest.mark.parametrize("model", ["smol", "gemma"])
def test_special_tokens_in_the_text_get_no_spaces_of_their_own(model, request):
    """B015: with skip_special_tokens=False spaces were invented around added tokens."""
    llm = request.getfixturevalue(model)
    tokenizer = llm.get_tokenizer()
    special = tokenizer.all_special_ids[1]
    options = dict(temperature=0, max_tokens=4, ignore_eos=True, logit_bias={special: 100})
    shown = run(llm, "a b c", skip_special_tokens=False, **options).outputs[0]
    hidden = run(llm, "a b c", **options).outputs[0]
    ids = list(shown.token_ids)
    assert special in ids and ids == list(hidden.token_ids)
    assert shown.text == tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.all_special_tokens[1] in shown.text
    assert tokenizer.all_special_tokens[1] not in hidden.text


@pytest.mark.parametrize("model", ["smol", "gemma"])
def test_text_survives_tokenising_and_back(model, request):
    """Gap: detokenise(tokenise(x)) == x for nasty strings."""
    tokenizer = request.getfixturevalue(model).get_tokenizer()
    for text in (NASTY, " leading", "trailing ", "\n\n", "a  b   c", "\u200d\ufeff", "x" * 50, "<|notspecial|>"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens_of_a_gguf_file_are_single_ids(smol):
    """B097: the markers were split into pieces."""
    tokenizer = smol.get_tokenizer()
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>", add_special_tokens=False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.decode(ids) == "<|im_start|>user\nHi<|im_end|>"


@pytest.mark.parametrize("model", ["smol", "gemma"])
def test_a_chat_has_the_beginning_of_sequence_that_its_template_writes_and_no_other(model, request):
    """B054: the template wrote one and the tokenizer added another."""
    llm = request.getfixturevalue(model)
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "Hi"}]
    template = None if tokenizer.chat_template else "{{ bos_token }}{{ messages[0].content }}"
    params = SamplingParams(temperature=0, max_tokens=1)
    (answer,) = llm.chat(messages, params, use_tqdm=False, chat_template=template)
    text = llm.preprocess_chat(messages, chat_template=template)["prompt"]
    # SmolLM2's is <|im_start|>, which begins each message: no more than the template wrote
    assert answer.prompt_token_ids.count(tokenizer.bos_token_id) == text.count(tokenizer.bos_token) >= 1
    assert answer.prompt_token_ids[0] == tokenizer.bos_token_id != answer.prompt_token_ids[1]


def test_generate_encodes_a_text_as_the_tokenizer_says_even_if_it_begins_with_the_mark(gemma):
    """B054, policy 4: what is written is what is encoded; add_special_tokens=False is for rendered chats."""
    tokenizer = gemma.get_tokenizer()
    params = SamplingParams(temperature=0, max_tokens=1)

    def num_marks(text: str, **kwargs) -> int:
        (output,) = gemma.generate(text, params, use_tqdm=False, **kwargs)
        return output.prompt_token_ids.count(tokenizer.bos_token_id)

    assert num_marks("Hi") == 1
    assert num_marks(f"{tokenizer.bos_token}Hi") == 2
    assert num_marks(f"{tokenizer.bos_token}Hi", tokenization_kwargs={"add_special_tokens": False}) == 1


def rendered(llm, messages, **options) -> str:
    return llm.preprocess_chat(messages, **options)["prompt"]


TOOL_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}"
    "{% endfor %}]{% endfor %};{% endfor %}"
)


def test_arguments_of_tool_calls_reach_the_template_as_a_mapping(smol):
    """B055: they were text, and `arguments.items()` failed."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert rendered(smol, messages, chat_template=TOOL_TEMPLATE) == "user:x;assistant:[a=1];"
    assert call["function"]["arguments"] == '{"a": 1}'  # the caller's object is untouched


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "ok", "tool_calls": []},
        {"role": "assistant", "content": "ok", "tool_calls": None},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ],
    ids=str,
)
def test_empty_tool_calls_and_missing_content_are_fine(smol, message):
    """B057: a template error or a crash."""
    text = rendered(smol, [{"role": "user", "content": "x"}, message], chat_template=TOOL_TEMPLATE)
    assert text == f"user:x;assistant:{message.get('content') or ''};"


def test_continuing_the_final_message_adds_no_header_and_no_end(smol):
    """B059: an assistant header, or the end marker, was appended anyway."""
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2,"}]
    text = rendered(smol, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("1, 2,") and text.count("<|im_start|>assistant") == 1
    with pytest.raises(InvalidRequestError):
        rendered(smol, messages, add_generation_prompt=True, continue_final_message=True)
    closed = rendered(smol, messages, add_generation_prompt=False)
    assert closed.rstrip().endswith("<|im_end|>")


@pytest.mark.parametrize(
    "arguments",
    [
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"},
        {"chat_template": "{{ 'x' * 10**10 }}"},
        {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
        {"chat_template": "{{ messages.append(1) }}"},
        {"chat_template": "{% if"},
    ],
    ids=str,
)
def test_templates_cannot_be_abused(smol, arguments):
    """B060: internals were overridden, or one template blocked the server."""
    with pytest.raises(InvalidRequestError):
        rendered(smol, [{"role": "user", "content": "x"}], **arguments)
