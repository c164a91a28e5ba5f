"""The small endpoints: models, tokenisation, health and control of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from starlette.responses import Response

from octavo.entrypoints.openai.conversations import Conversation, render_conversation
from octavo.entrypoints.openai.errors import HTTPError
from octavo.entrypoints.openai.protocol.services import (
    DetokenizeRequest,
    DetokenizeResponse,
    LoadResponse,
    ModelCard,
    ModelList,
    ModelPermission,
    ResetResponse,
    SleepState,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    VersionResponse,
)
from octavo.entrypoints.openai.state import RequestContext, ServerState
from octavo.entrypoints.tool_requests import NO_TOOLS, chat_tools
from octavo.errors import InvalidRequestError
from octavo.tokenizers.pieces import MAX_TOKEN_ID
from octavo.types.sampling_checks import wrong

if TYPE_CHECKING:
    from octavo.engine.async_rest import PauseMode

# -- models ------------------------------------------------------------------------------------------------------------


async def list_models(server: ServerState, context: RequestContext) -> ModelList:
    """Return every name under which the model is served."""
    return ModelList([_card(server, name) for name in (*server.model_names, *server.adapters.requests)])


async def show_model(server: ServerState, context: RequestContext) -> ModelCard | ModelList:
    """Return one name's card, or the list when none is named; raises HTTPError 404."""
    if not context.path["model"]:
        return await list_models(server, context)
    return _card(server, server.model_name(context.path["model"]))


def _card(server: ServerState, name: str) -> ModelCard:
    adapter = server.lora_request(name)
    return ModelCard(
        id=name,
        created=server.created,
        root=server.engine.model_config.model if adapter is None else adapter.lora_path,
        parent=None if adapter is None else server.model_names[0],
        max_model_len=server.max_model_len,
        permission=[ModelPermission(f"modelperm-{name}", server.created)],
    )


# -- tokenisation ------------------------------------------------------------------------------------------------------


async def tokenize(server: ServerState, request: TokenizeRequest, context: RequestContext) -> TokenizeResponse:
    """Return the ids that a completion or a chat with the same input would run."""
    server.model_name(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequestError("give exactly one of prompt and messages", "prompt")
    return await server.prepare(lambda: _tokenize(server, request), context.is_bulky)


def _tokenize(server: ServerState, request: TokenizeRequest) -> TokenizeResponse:
    tokenizer = server.require_tokenizer()
    if request.messages is not None:
        conversation = Conversation(
            request.messages,
            request.add_generation_prompt,
            request.continue_final_message,
            request.chat_template,
            request.chat_template_kwargs,
            tools=chat_tools(request.tools, None, None) if request.tools else NO_TOOLS,
        )
        text, adds_special_tokens = render_conversation(server, conversation), bool(request.add_special_tokens)
    else:
        text, adds_special_tokens = request.prompt or "", request.add_special_tokens is not False
    token_ids = tokenizer.encode(text, add_special_tokens=adds_special_tokens)
    response = TokenizeResponse(len(token_ids), server.max_model_len, token_ids)
    if request.return_token_strs:
        response.token_strs = [token or "" for token in tokenizer.convert_ids_to_tokens(token_ids)]
    return response


async def tokenizer_info(server: ServerState, context: RequestContext) -> TokenizerInfo:
    """Return the special tokens and the chat template."""
    tokenizer = server.require_tokenizer()
    return TokenizerInfo(
        tokenizer_class="PreTrainedTokenizerFast",
        model_max_length=server.max_model_len,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        unk_token=tokenizer.unk_token,
        pad_token=tokenizer.pad_token,
        additional_special_tokens=tokenizer.all_special_tokens,
        chat_template=server.chat_template or tokenizer.chat_template,
    )


async def detokenize(server: ServerState, request: DetokenizeRequest, context: RequestContext) -> DetokenizeResponse:
    """Return the text of ids, special tokens included."""
    server.model_name(request.model)
    return await server.prepare(lambda: _detokenize(server, request), context.is_bulky)


def _detokenize(server: ServerState, request: DetokenizeRequest) -> DetokenizeResponse:
    vocab_size = min(server.engine.model_config.vocab_size, MAX_TOKEN_ID + 1)
    for token_id in request.tokens:
        if not 0 <= token_id < vocab_size:
            raise wrong("tokens", f"made of token ids from 0 to {vocab_size - 1}", token_id)
    return DetokenizeResponse(server.require_tokenizer().decode(request.tokens))


# -- health ------------------------------------------------------------------------------------------------------------


async def health(server: ServerState, context: RequestContext) -> Response:
    """Return 200, or raise EngineDeadError (503) while there is no engine."""
    await server.engine.check_health()
    return Response(status_code=200)


async def version(server: ServerState, context: RequestContext) -> VersionResponse:
    """Return Octavo's version."""
    from octavo import __version__

    return VersionResponse(__version__)


async def load(server: ServerState, context: RequestContext) -> LoadResponse:
    """Return how many generation requests are in work."""
    return LoadResponse(await server.num_requests_of_all())


# -- control -----------------------------------------------------------------------------------------------------------


async def reset_prefix_cache(server: ServerState, context: RequestContext) -> ResetResponse:
    """Forget cached prefixes; reset_running_requests=true also takes the blocks of what runs."""
    was_reset = await server.engine.reset_prefix_cache(
        _flag(context, "reset_running_requests"), _flag(context, "reset_external")
    )
    return ResetResponse(was_reset)


async def sleep(server: ServerState, context: RequestContext) -> Response:
    """Compute nothing until woken up; level 1 gives the KV cache back, 2 also the weights."""
    level = context.query.get("level", "1")
    if level not in ("0", "1", "2"):
        raise wrong("level", "0, 1 or 2", level)
    await server.engine.sleep(int(level), cast("PauseMode", context.query.get("mode", "abort")))
    return Response(status_code=200)


async def wake_up(server: ServerState, context: RequestContext) -> Response:
    """Take the memory again and go on."""
    await server.engine.wake_up()
    return Response(status_code=200)


async def is_sleeping(server: ServerState, context: RequestContext) -> SleepState:
    """Say whether the engine sleeps."""
    return SleepState(await server.engine.is_sleeping())


def _flag(context: RequestContext, name: str) -> bool:
    value = context.query.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise HTTPError(400, f"{name} must be true or false, got {value!r}", parameter=name)
    return value in ("true", "1")
