"""From a conversation to the job of one answer: what the endpoints besides chat completions have in common."""

from __future__ import annotations

from typing import Any

from octavo.entrypoints.openai.conversations import Conversation, render_conversation
from octavo.entrypoints.openai.generation import Job, check_job
from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.sampling import to_sampling_params, tokenization_kwargs
from octavo.entrypoints.openai.state import ServerState


def conversation_job(
    server: ServerState,
    engine_id: str,
    conversation: Conversation,
    sampling: GenerationRequest,
    max_tokens: int | None,
    logprobs: int | None = None,
) -> Job:
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
    prompt: dict[str, Any] = {"prompt": render_conversation(server, conversation)}
    if sampling.cache_salt is not None:
        prompt["cache_salt"] = sampling.cache_salt
    kwargs = tokenization_kwargs(sampling, add_special_tokens=False)
    return check_job(server.engine, engine_id, [prompt], params, sampling.priority, kwargs)
