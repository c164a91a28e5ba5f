"""From a conversation to the job of its answer, and how that is read: what the endpoints of conversations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.entrypoints.answers import AnswerPlan, AnswerReader
from octavo.entrypoints.openai.conversations import Conversation, answers_to, render_conversation
from octavo.entrypoints.openai.generation import Job, check_job
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.sampling import tokenization_kwargs
from octavo.entrypoints.openai.state import ServerState
from octavo.errors import RequestFailedError
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_params import SamplingParams


@dataclass(frozen=True)
class ConversationJob:
    """What runs, the prompt's text, and how the answer is read."""

    job: Job
    prompt: str
    answers: AnswerPlan

    def reader(self, tokenizer: Tokenizer | None) -> AnswerReader:
        """Return a reader for one answer."""
        return self.answers.reader(tokenizer, self.prompt)


def conversation_job(
    server: ServerState,
    engine_id: str,
    conversation: Conversation,
    request: GenerationRequest,
    params: SamplingParams,
    shows_reasoning: bool = True,
) -> ConversationJob:
    """Render the conversation and tokenise it. Takes time: not for the event loop.

    request: how its prompt is tokenised and queued; params: changed so that the answer can be read
    Raises InvalidRequestError or UnsupportedError.
    """
    server.check_generates()
    answers = answers_to(server, conversation, shows_reasoning)
    text = render_conversation(server, conversation)
    answers.prepare(params, server.tokenizer, text)
    prompt: dict[str, Any] = {"prompt": text}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    # the template writes the special tokens itself: adding the tokenizer's would give two beginnings
    kwargs = tokenization_kwargs(request, add_special_tokens=False)
    lora = server.lora_request(request.model)
    job = check_job(server.engine, engine_id, [prompt], params, request.priority, kwargs, lora)
    return ConversationJob(job, text, answers)


def check_not_aborted(completion: CompletionOutput) -> None:
    """Raise RequestFailedError for an answer that was given up: these APIs have no word for such an end."""
    if completion.finish_reason == "abort":
        raise RequestFailedError("the request was aborted: the server stops, or its engine was paused")
