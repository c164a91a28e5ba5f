"""From a conversation to the job of one answer: what the endpoints besides chat completions have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.entrypoints.answers import AnswerPlan
from octavo.entrypoints.openai.conversations import Conversation, answers_to, render_conversation
from octavo.entrypoints.openai.generation import Job, check_job
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.sampling import to_sampling_params, tokenization_kwargs
from octavo.entrypoints.openai.state import ServerState


@dataclass(frozen=True)
class ConversationJob:
    """What runs, the prompt's text, and how the answer is read."""

    job: Job
    prompt: str
    answers: AnswerPlan


def conversation_job(
    server: ServerState,
    engine_id: str,
    conversation: Conversation,
    sampling: GenerationRequest,
    max_tokens: int | None,
    logprobs: int | None = None,
    shows_reasoning: bool = True,
) -> ConversationJob:
    """Check the sampling fields, render the conversation and tokenise it. Takes time: not for the event loop.

    max_tokens: None = as many as the context has room for; logprobs: candidates per token, or None
    Raises InvalidRequestError or UnsupportedError.
    """
    params = to_sampling_params(
        sampling,
        server.engine.model_config.default_sampling_params,
        max_tokens=max_tokens,
        logprobs=logprobs,
        max_stop_strings=server.args.max_stop_strings,
    )
    answers = answers_to(server, conversation, shows_reasoning)
    text = render_conversation(server, conversation)
    answers.prepare(params, server.tokenizer, text)
    prompt: dict[str, Any] = {"prompt": text}
    if sampling.cache_salt is not None:
        prompt["cache_salt"] = sampling.cache_salt
    kwargs = tokenization_kwargs(sampling, add_special_tokens=False)
    job = check_job(server.engine, engine_id, [prompt], params, sampling.priority, kwargs)
    return ConversationJob(job, text, answers)
