"""The route table: every endpoint once. Serving, keys and the OpenAPI description are all made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.routing import Route

from octavo.entrypoints.anthropic.errors import error_response as anthropic_error_response
from octavo.entrypoints.anthropic.messages import count_tokens, create_message
from octavo.entrypoints.anthropic.protocol import CountTokensRequest, Message, MessagesRequest, TokenCount
from octavo.entrypoints.openai import errors, services
from octavo.entrypoints.openai.adapters import load_adapter, unload_adapter
from octavo.entrypoints.openai.chat import create_chat_completion
from octavo.entrypoints.openai.completions import create_completion
from octavo.entrypoints.openai.docs import show_docs, show_openapi
from octavo.entrypoints.openai.embeddings import (
    create_classification,
    create_cohere_embeddings,
    create_embeddings,
    create_pooling,
)
from octavo.entrypoints.openai.http import ErrorResponder, JSONEndpoint, JSONHandler, PlainEndpoint, PlainHandler
from octavo.entrypoints.openai.live_view import LiveState, show_state
from octavo.entrypoints.openai.metrics import show_metrics
from octavo.entrypoints.openai.page import STATIC_FILES, show_page, static_file
from octavo.entrypoints.openai.protocol.chat import ChatCompletionRequest, ChatCompletionResponse
from octavo.entrypoints.openai.protocol.completions import CompletionRequest, CompletionResponse
from octavo.entrypoints.openai.protocol.pooling import (
    ClassificationRequest,
    ClassificationResponse,
    CohereEmbedRequest,
    CohereEmbedResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from octavo.entrypoints.openai.protocol.responses import DeletedResponse, ResponseObject, ResponsesRequest
from octavo.entrypoints.openai.protocol.services import (
    DetokenizeRequest,
    DetokenizeResponse,
    LoadAdapterRequest,
    LoadResponse,
    ModelCard,
    ModelList,
    ResetResponse,
    ServiceDone,
    SleepState,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    UnloadAdapterRequest,
    VersionResponse,
)
from octavo.entrypoints.openai.rerank import create_scores, rerank
from octavo.entrypoints.openai.responses import cancel_response, create_response, delete_response, retrieve_response
from octavo.entrypoints.openai.state import ServerState


@dataclass(frozen=True)
class Endpoint:
    """One path. is_open: needs no API key; media_type: of an answer that is not JSON; query: parameters by name."""

    path: str
    summary: str
    handler: JSONHandler[Any] | PlainHandler
    request_type: type[msgspec.Struct] | None = None
    response_type: type[msgspec.Struct] | None = None
    method: str = "GET"
    is_open: bool = False
    streams: bool = False
    media_type: str | None = None
    query: tuple[str, ...] = ()
    is_documented: bool = True
    error_response: ErrorResponder = errors.error_response


def _posting(
    path: str,
    summary: str,
    handler: JSONHandler[Any],
    request_type: type[msgspec.Struct],
    response_type: type[msgspec.Struct],
    streams: bool = False,
    error_response: ErrorResponder = errors.error_response,
) -> Endpoint:
    return Endpoint(
        path, summary, handler, request_type, response_type, "POST", streams=streams, error_response=error_response
    )


SCORE_PATHS = ("/score", "/v1/score")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")

ENDPOINTS: tuple[Endpoint, ...] = (
    _posting(
        "/v1/chat/completions",
        "Answer a conversation",
        create_chat_completion,
        ChatCompletionRequest,
        ChatCompletionResponse,
        streams=True,
    ),
    _posting(
        "/v1/completions", "Continue prompts", create_completion, CompletionRequest, CompletionResponse, streams=True
    ),
    _posting(
        "/v1/responses",
        "Answer a text or a conversation, and keep it",
        create_response,
        ResponsesRequest,
        ResponseObject,
        streams=True,
    ),
    Endpoint("/v1/responses/{response_id}", "Show a response", retrieve_response, response_type=ResponseObject),
    Endpoint(
        "/v1/responses/{response_id}",
        "Forget a response",
        delete_response,
        response_type=DeletedResponse,
        method="DELETE",
    ),
    Endpoint(
        "/v1/responses/{response_id}/cancel",
        "End a response that runs in the background",
        cancel_response,
        response_type=ResponseObject,
        method="POST",
    ),
    _posting(
        "/v1/messages",
        "Answer a conversation (Anthropic's API)",
        create_message,
        MessagesRequest,
        Message,
        streams=True,
        error_response=anthropic_error_response,
    ),
    _posting(
        "/v1/messages/count_tokens",
        "Count a conversation's tokens (Anthropic's API)",
        count_tokens,
        CountTokensRequest,
        TokenCount,
        error_response=anthropic_error_response,
    ),
    _posting("/v1/embeddings", "Embeddings of texts", create_embeddings, EmbeddingRequest, EmbeddingResponse),
    _posting(
        "/v2/embed", "Embeddings (Cohere's API)", create_cohere_embeddings, CohereEmbedRequest, CohereEmbedResponse
    ),
    _posting("/pooling", "What the model makes of texts", create_pooling, PoolingRequest, PoolingResponse),
    _posting("/classify", "Classes of texts", create_classification, ClassificationRequest, ClassificationResponse),
    *(_posting(path, "Scores of pairs", create_scores, ScoreRequest, ScoreResponse) for path in SCORE_PATHS),
    *(_posting(path, "Documents by relevance", rerank, RerankRequest, RerankResponse) for path in RERANK_PATHS),
    Endpoint("/v1/models", "List the names of the model", services.list_models, response_type=ModelList),
    Endpoint("/v1/models/{model:path}", "Show one name", services.show_model, response_type=ModelCard),
    _posting("/v1/load_lora_adapter", "Load a LoRA adapter", load_adapter, LoadAdapterRequest, ServiceDone),
    _posting("/v1/unload_lora_adapter", "Forget a LoRA adapter", unload_adapter, UnloadAdapterRequest, ServiceDone),
    _posting("/tokenize", "Text or a conversation to ids", services.tokenize, TokenizeRequest, TokenizeResponse),
    _posting("/detokenize", "Ids to text", services.detokenize, DetokenizeRequest, DetokenizeResponse),
    Endpoint(
        "/tokenizer_info", "Special tokens and the chat template", services.tokenizer_info, response_type=TokenizerInfo
    ),
    Endpoint("/health", "200 while there is an engine, else 503", services.health, is_open=True),
    Endpoint("/ping", "The same as /health", services.health, is_open=True),
    Endpoint("/ping", "The same as /health", services.health, method="POST", is_open=True),
    Endpoint("/version", "Octavo's version", services.version, response_type=VersionResponse, is_open=True),
    Endpoint("/load", "Generation requests in work", services.load, response_type=LoadResponse, is_open=True),
    Endpoint("/octavo/state", "The engine as it is now", show_state, response_type=LiveState),
    Endpoint("/metrics", "Prometheus metrics", show_metrics, is_open=True, media_type="text/plain"),
    Endpoint(
        "/reset_prefix_cache",
        "Forget cached prefixes",
        services.reset_prefix_cache,
        response_type=ResetResponse,
        method="POST",
        query=("reset_running_requests", "reset_external"),
    ),
    Endpoint("/sleep", "Rest, and give memory back", services.sleep, method="POST", query=("level", "mode")),
    Endpoint("/wake_up", "Take the memory again", services.wake_up, method="POST"),
    Endpoint("/is_sleeping", "Whether the engine sleeps", services.is_sleeping, response_type=SleepState),
)

PAGE_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/", "A page to try and to watch the engine", show_page, is_open=True, is_documented=False),
    *(
        Endpoint(f"/static/{name}", "A file of the page", static_file(name), is_open=True, is_documented=False)
        for name in STATIC_FILES
    ),
)

DOCS_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/docs", "This API as a page", show_docs, is_open=True, media_type="text/html", is_documented=False),
    Endpoint("/openapi.json", "This API for machines", show_openapi, is_open=True, is_documented=False),
)


def endpoints(has_docs: bool) -> tuple[Endpoint, ...]:
    """Return what a server offers."""
    return (*ENDPOINTS, *PAGE_ENDPOINTS, *(DOCS_ENDPOINTS if has_docs else ()))


def make_route(server: ServerState, endpoint: Endpoint) -> Route:
    """Return the route that serves an endpoint."""
    if endpoint.request_type is not None:
        application: Any = JSONEndpoint(
            server,
            endpoint.request_type,
            endpoint.handler,  # type: ignore[arg-type]
            endpoint.error_response,
        )
    else:
        application = PlainEndpoint(server, endpoint.handler)  # type: ignore[arg-type]
    return Route(endpoint.path, application, methods=[endpoint.method])
