"""/v1/responses: OpenAI's newer way to ask, where the server can keep the conversation."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing
from typing import Any

from octavo.entrypoints.openai.conversation_job import ConversationJob
from octavo.entrypoints.openai.errors import HTTPError
from octavo.entrypoints.openai.http import Events, named_event
from octavo.entrypoints.openai.protocol.responses import (
    DeletedResponse,
    OutputMessage,
    ResponseObject,
    ResponsesRequest,
)
from octavo.entrypoints.openai.response_input import check_fields, input_messages, num_top_logprobs, response_job
from octavo.entrypoints.openai.response_store import Messages, StoredResponse
from octavo.entrypoints.openai.response_turns import turns_of
from octavo.entrypoints.openai.response_writer import ResponseWriter
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.errors import InvalidRequestError
from octavo.log import get_logger
from octavo.types.sampling_checks import shown

logger = get_logger(__name__)

_BYTES_BESIDE_TEXT = 2000  # of a stored response, about
_BYTES_PER_MESSAGE = 300
_FINISHED = ("completed", "incomplete")


async def create_response(
    server: ServerState, request: ResponsesRequest, context: RequestContext
) -> ResponseObject | Events:
    """Answer a request; raises before anything runs if it is wrong."""
    model = server.model_name(request.model)
    check_fields(request)
    earlier: Messages = ()
    if request.previous_response_id is not None:
        earlier = await _from_store(server, "continue", request.previous_response_id, "previous_response_id")
    messages = [*earlier, *input_messages(request)]
    server.runner.admission.check()
    # the response's own id is never the client's: it is the key under which others could find it
    response_id = f"resp_{secrets.token_hex(16)}"
    ids = new_request_ids("resp", context.request_id, request.request_id)
    compiles = bool((request.text or {}).get("format") or request.structured_outputs or request.tools)
    job = await server.prepare(lambda: response_job(server, request, messages, ids.engine), context.is_bulky, compiles)
    response = _new_response(request, job, response_id, model)
    writer = ResponseWriter(server, response, job, num_top_logprobs(request))
    if request.stream:
        return _events(server, writer, messages)
    if request.background:
        return _start(server, writer, messages)
    async with aclosing(writer.events()) as events:
        async for _ in events:
            pass
    if response.error is not None:
        raise HTTPError(500, response.error.message)
    _keep(server, response, messages)
    return response


def _new_response(request: ResponsesRequest, job: ConversationJob, response_id: str, model: str) -> ResponseObject:
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        model=model,
        status="queued" if request.background else "in_progress",
        output=[],
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        max_output_tokens=request.max_output_tokens,
        temperature=job.job.params.temperature,
        top_p=job.job.params.top_p,
        top_logprobs=request.top_logprobs,
        metadata=request.metadata or {},
        background=bool(request.background),
        store=request.store is not False,
        reasoning=request.reasoning,
        user=request.user,
        text={"format": {"type": "text"}, **(request.text or {})},
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        parallel_tool_calls=request.parallel_tool_calls is not False,
    )


async def _events(server: ServerState, writer: ResponseWriter, messages: Messages) -> Events:
    async with aclosing(writer.events()) as events:
        async for item in events:
            yield named_event(item.type, item)
    _keep(server, writer.response, messages)


# -- storing -----------------------------------------------------------------------------------------------------------


def _keep(server: ServerState, response: ResponseObject, messages: Messages) -> None:
    if response.store:
        server.responses.put(StoredResponse(response, messages, _size_bytes(response, messages)))


def _size_bytes(response: ResponseObject, messages: Messages) -> int:
    """Return about how much memory a stored response keeps alive: its whole conversation, not only its own turn."""
    texts = [str(message) for message in messages]
    texts += [str(turn) for turn in turns_of(response.output)]
    texts += [*response.metadata.values(), response.instructions or "", str(response.tools)]
    answers = (item for item in response.output if isinstance(item, OutputMessage))
    num_logprobs = sum(len(part.logprobs) for item in answers for part in item.content)
    size = sum(4 * len(text) + _BYTES_PER_MESSAGE for text in texts) + _BYTES_BESIDE_TEXT
    return size + num_logprobs * _BYTES_PER_MESSAGE * (1 + (response.top_logprobs or 0))


def _start(server: ServerState, writer: ResponseWriter, messages: Messages) -> ResponseObject:
    """Let a response run by itself, and return it as it is now: queued."""

    async def run() -> None:
        try:
            async with aclosing(writer.events()) as events:
                async for _ in events:
                    pass
        except Exception as error:  # the response says so to whoever asks for it
            logger.warning("%s failed in the background: %s", writer.response.id, error)

    # room for the answer is counted from the start, some 16 bytes a token
    num_tokens = min(writer.response.max_output_tokens or server.max_model_len, server.max_model_len)
    size_bytes = _size_bytes(writer.response, messages) + 16 * num_tokens
    server.responses.put(StoredResponse(writer.response, messages, size_bytes, asyncio.create_task(run())))
    return writer.response


async def retrieve_response(server: ServerState, context: RequestContext) -> Any:
    """Return a stored response as it is now; raises HTTPError 404."""
    if context.query.get("stream", "false").lower() not in ("false", "0"):
        raise InvalidRequestError("stored responses cannot be streamed; leave stream out", "stream")
    return await _from_store(server, "find", context.path["response_id"])


async def cancel_response(server: ServerState, context: RequestContext) -> Any:
    """End a response that runs in the background; one that has ended stays as it is."""
    return await _from_store(server, "cancel", context.path["response_id"])


async def delete_response(server: ServerState, context: RequestContext) -> DeletedResponse:
    """Forget a stored response; raises HTTPError 404."""
    response_id = context.path["response_id"]
    await _from_store(server, "delete", response_id)
    return DeletedResponse(response_id)


async def _from_store(server: ServerState, work: str, response_id: str, parameter: str | None = None) -> Any:
    """Let the server process that has a response do something with it; raises HTTPError 404.

    parameter: the request's field that names it
    """
    answers = await server.peers.call("stored_response", work, response_id)
    found = [answer for answer in answers if answer is not None]
    if not found:
        raise HTTPError(404, f"there is no stored response {shown(response_id)}", parameter=parameter)
    return found[0]


def serve_stored_responses(server: ServerState) -> None:
    """Let every server process of the engine use the responses that this one has stored."""

    async def stored_response(work: str, response_id: str) -> Any:
        stored = server.responses.get(response_id)
        return None if stored is None else await _STORE_WORK[work](server, stored)

    server.peers.offer(stored_response=stored_response)


async def _find(server: ServerState, stored: StoredResponse) -> ResponseObject:
    return stored.response


async def _continue(server: ServerState, stored: StoredResponse) -> Messages:
    """Return the conversation so far; its instructions do not go on, as in OpenAI's API."""
    if stored.response.status not in _FINISHED:
        raise InvalidRequestError(
            f"the previous response is {stored.response.status}; only a finished one can be continued",
            "previous_response_id",
        )
    return [*stored.messages, *turns_of(stored.response.output)]


async def _cancel(server: ServerState, stored: StoredResponse) -> ResponseObject:
    if not stored.response.background:
        raise InvalidRequestError("only responses in the background can be cancelled; close the connection of others")
    if stored.task is not None and not stored.task.done():
        stored.task.cancel()
        await asyncio.wait((stored.task,))
        if stored.response.status in ("queued", "in_progress"):
            stored.response.status = "cancelled"
    return stored.response


async def _delete(server: ServerState, stored: StoredResponse) -> bool:
    server.responses.discard(stored.response.id)
    return True


_STORE_WORK = {"find": _find, "continue": _continue, "cancel": _cancel, "delete": _delete}
