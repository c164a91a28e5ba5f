"""/score and /rerank: how well texts go together, and documents ordered by it (Jina's and Cohere's shapes)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.entrypoints.openai.pooling_job import (
    Outputs,
    PoolingJob,
    check_pooling_job,
    max_inputs,
    pooling_usage,
    run_pooling_job,
    wants_activation,
)
from octavo.entrypoints.openai.protocol.pooling import (
    PoolingRequestBase,
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    ScoreData,
    ScoreRequest,
    ScoreResponse,
)
from octavo.entrypoints.openai.state import RequestContext, ServerState, new_request_ids
from octavo.entrypoints.openai.unbuilt_fields import POOLING_UNBUILT, refuse_unbuilt
from octavo.entrypoints.scoring import ScoringPlan, plan_scoring
from octavo.errors import InvalidRequestError
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_checks import wrong


async def create_scores(server: ServerState, request: ScoreRequest, context: RequestContext) -> ScoreResponse:
    """Return a score for each pair of texts."""
    model = server.model_name(request.model)
    refuse_unbuilt(request, POOLING_UNBUILT)
    first = _given(request, ("data_1", "text_1", "queries"))
    second = _given(request, ("data_2", "text_2", "documents", "items"))
    response_id, scores, outputs = await _score(server, request, context, first, second, "score")
    data = [ScoreData(index, score) for index, score in enumerate(scores)]
    return ScoreResponse(response_id, int(time.time()), model, data, pooling_usage(server, outputs))


async def rerank(server: ServerState, request: RerankRequest, context: RequestContext) -> RerankResponse:
    """Return the documents that answer the query best, best first."""
    model = server.model_name(request.model)
    refuse_unbuilt(request, POOLING_UNBUILT)
    documents, top_n = request.documents, request.top_n or 0
    if request.query is None or not documents:
        raise InvalidRequestError("query and at least one document are required", "documents")
    if top_n < 0:
        raise wrong("top_n", "at least 1, or 0 for all", top_n)
    response_id, scores, outputs = await _score(server, request, context, [request.query], documents, "rerank")
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: top_n or len(scores)]
    results = [RerankResult(index, scores[index]) for index in order]
    if request.return_documents is not False:
        for result in results:
            document = documents[result.index]
            result.document = RerankDocument(document["text"] if isinstance(document, dict) else document)
    return RerankResponse(response_id, model, pooling_usage(server, outputs), results)


async def _score(
    server: ServerState,
    request: PoolingRequestBase,
    context: RequestContext,
    first: Sequence[object],
    second: Sequence[object],
    id_prefix: str,
) -> tuple[str, list[float], Outputs]:
    """Return the response's id, the scores, and the outputs that they come of."""
    config = server.engine.model_config.pooling
    if config is None:
        raise InvalidRequestError("this server's model generates text and cannot score; start it with --runner pooling")
    if len(second) > max_inputs(server):
        raise InvalidRequestError(
            f"{len(second)} texts are too many; at most {max_inputs(server)} are allowed", "documents"
        )
    server.runner.admission.check()
    ids = new_request_ids(id_prefix, context.request_id, request.request_id)
    template, instruction = server.chat_template if config.is_causal else None, request.instruction
    request.instruction = None  # the template has it
    params = PoolingParams(use_activation=wants_activation(request))

    def prepare() -> tuple[ScoringPlan, PoolingJob]:
        plan = plan_scoring(config, first, second, params, server.tokenizer, template, instruction)
        return plan, check_pooling_job(server, ids.engine, plan.prompts, plan.params, request)

    plan, job = await server.prepare(prepare, context.is_bulky)
    outputs = await run_pooling_job(server, job)
    return ids.shown, plan.scores(outputs), outputs


def _given(request: ScoreRequest, names: Sequence[str]) -> list[Any]:
    """Return the texts of the one field that is given, as a list."""
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(f"give exactly one of {', '.join(names)}", names[0])
    value = getattr(request, given[0])
    return [value] if isinstance(value, (str, Mapping)) else _as_list(given[0], value)


def _as_list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise wrong(name, "text, or a list of at least one text", value)
    return value
