"""/v1/embeddings, /pooling, /classify and Cohere's /v2/embed: vectors and classes of texts."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.entrypoints.openai.pooling_job import pool_inputs, pooling_usage, wants_activation
from octavo.entrypoints.openai.protocol.pooling import (
    ClassificationData,
    ClassificationRequest,
    ClassificationResponse,
    CohereBilledUnits,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    EmbeddingData,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingData,
    PoolingRequest,
    PoolingResponse,
    VectorRequest,
)
from octavo.entrypoints.openai.state import RequestContext, ServerState
from octavo.entrypoints.openai.unbuilt_fields import POOLING_UNBUILT, refuse_unbuilt
from octavo.errors import InvalidRequestError
from octavo.types.pooling import POOLING_TASKS, PoolingParams
from octavo.types.sampling_checks import wrong

Array = NDArray[np.float32]


async def create_embeddings(
    server: ServerState, request: EmbeddingRequest, context: RequestContext
) -> EmbeddingResponse:
    """Return an embedding for each input."""
    model = server.model_name(request.model)
    refuse_unbuilt(request, POOLING_UNBUILT)
    write = vector_writer(request)
    params = PoolingParams(task="embed", dimensions=request.dimensions, use_activation=wants_activation(request))
    response_id, outputs = await pool_inputs(server, request, context, params, "embd")
    data = [EmbeddingData(index, write(output.outputs.data)) for index, output in enumerate(outputs)]
    return EmbeddingResponse(response_id, int(time.time()), model, data, pooling_usage(server, outputs))


async def create_pooling(server: ServerState, request: PoolingRequest, context: RequestContext) -> PoolingResponse:
    """Return what the model makes of each input."""
    model = server.model_name(request.model)
    refuse_unbuilt(request, POOLING_UNBUILT)
    write = vector_writer(request)
    if request.task is not None and request.task not in POOLING_TASKS:
        raise wrong("task", f"one of {', '.join(POOLING_TASKS)}", request.task)
    params = PoolingParams(task=request.task, dimensions=request.dimensions, use_activation=wants_activation(request))
    response_id, outputs = await pool_inputs(server, request, context, params, "pool")
    data = [PoolingData(index, write(output.outputs.data)) for index, output in enumerate(outputs)]
    return PoolingResponse(response_id, int(time.time()), model, data, pooling_usage(server, outputs))


async def create_classification(
    server: ServerState, request: ClassificationRequest, context: RequestContext
) -> ClassificationResponse:
    """Return the probability of each label for each input."""
    model = server.model_name(request.model)
    refuse_unbuilt(request, POOLING_UNBUILT)
    params = PoolingParams(task="classify", use_activation=wants_activation(request))
    response_id, outputs = await pool_inputs(server, request, context, params, "classify")
    config = server.engine.model_config.pooling
    assert config is not None, "only a pooling model gives outputs"
    data = []
    for index, output in enumerate(outputs):
        probs = output.outputs.data
        data.append(ClassificationData(index, config.labels[int(probs.argmax())], probs.tolist(), len(probs)))
    return ClassificationResponse(response_id, int(time.time()), model, data, pooling_usage(server, outputs))


# -- how vectors are written -------------------------------------------------------------------------------------------


def vector_writer(request: VectorRequest) -> Callable[[Array], Any]:
    """Return what writes a vector as the request wants it; raises InvalidRequestError naming the field."""
    encoding = "float" if request.encoding_format is None else request.encoding_format
    dtype = "float32" if request.embed_dtype is None else request.embed_dtype
    endianness = "native" if request.endianness is None else request.endianness
    if encoding not in ("float", "base64"):
        if encoding in ("bytes", "bytes_only"):
            raise InvalidRequestError(
                f"encoding_format={encoding!r} is not supported; use float or base64", "encoding_format"
            )
        raise wrong("encoding_format", "float or base64", encoding)
    if dtype not in _BYTES:
        raise wrong("embed_dtype", f"one of {', '.join(_BYTES)}", dtype)
    if endianness not in _ENDIANNESS:
        raise wrong("endianness", f"one of {', '.join(_ENDIANNESS)}", endianness)
    if encoding == "float":
        return lambda vector: vector.tolist()
    order = _ENDIANNESS[endianness]
    return lambda vector: base64.b64encode(_BYTES[dtype](vector, order)).decode("ascii")


def _bfloat16(vector: Array, order: str) -> bytes:
    """Return the upper halves, rounded to the nearest, ties to even."""
    bits = vector.astype("<f4").view("<u4")
    rounded: NDArray[np.uint32] = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return rounded.astype(f"{order}u2").tobytes()


_ENDIANNESS = {"native": "<", "little": "<", "big": ">"}
_BYTES: Mapping[str, Callable[[Array, str], bytes]] = {
    "float32": lambda vector, order: vector.astype(f"{order}f4").tobytes(),
    "float16": lambda vector, order: vector.astype(f"{order}f2").tobytes(),
    "bfloat16": _bfloat16,
}


# -- Cohere ------------------------------------------------------------------------------------------------------------


async def create_cohere_embeddings(
    server: ServerState, request: CohereEmbedRequest, context: RequestContext
) -> CohereEmbedResponse:
    """Return embeddings in Cohere's shape."""
    if request.inputs or request.images or not request.texts:
        raise InvalidRequestError("texts are required; inputs and images are not supported", "texts")
    types = request.embedding_types or ["float"]
    for kind in types:
        if kind not in _COHERE_TYPES:
            raise wrong("embedding_types", f"made of {', '.join(_COHERE_TYPES)}", kind)
    params = PoolingParams(task="embed", dimensions=request.output_dimension)
    plain = _as_embedding_request(server, request)
    if plain.truncate_prompt_tokens is None:
        await server.prepare(lambda: _refuse_long(server, request.texts or [], plain.prompt_name), context.is_bulky)
    try:
        response_id, outputs = await pool_inputs(server, plain, context, params, "embd")
    except InvalidRequestError as error:
        raise _in_coheres_words(error) from None
    vectors = [output.outputs.data for output in outputs]
    embeddings = {kind: [_COHERE_TYPES[kind](vector) for vector in vectors] for kind in types}
    meta = CohereMeta(CohereBilledUnits(pooling_usage(server, outputs).prompt_tokens))
    return CohereEmbedResponse(response_id, embeddings, request.texts, meta)


def _as_embedding_request(server: ServerState, request: CohereEmbedRequest) -> EmbeddingRequest:
    """Return the request in OpenAI's words. input_type names a prompt of the model's own, where it has one for it."""
    truncate = "END" if request.truncate is None else request.truncate.upper()
    if truncate not in ("NONE", "START", "END"):
        raise wrong("truncate", "NONE, START or END", request.truncate)
    limit = request.max_tokens if request.max_tokens is not None else -1
    config = server.engine.model_config.pooling
    prompts = config.prompts if config is not None else {}
    kind = request.input_type
    if kind is not None and kind not in _COHERE_PROMPTS and kind not in prompts:
        raise wrong("input_type", f"one of {', '.join([*_COHERE_PROMPTS, *prompts])}", kind)
    names = (kind, *_COHERE_PROMPTS.get(kind, ())) if kind is not None else ()
    return EmbeddingRequest(
        model=server.model_name(request.model),
        input=request.texts,
        truncate_prompt_tokens=None if truncate == "NONE" else limit,
        truncation_side="left" if truncate == "START" else "right",
        prompt_name=next((name for name in names if name in prompts), None),
        priority=request.priority,
    )


def _in_coheres_words(error: InvalidRequestError) -> InvalidRequestError:
    """Return the error with the request's own names of fields."""
    ours = error.parameter or ""
    theirs = _COHERE_FIELDS.get(ours, ours)
    message = str(error).replace(f"{ours}=", f"{theirs}=").replace(f"{ours} must", f"{theirs} must")
    return InvalidRequestError(message, theirs or None)


def _refuse_long(server: ServerState, texts: Sequence[str], prompt_name: str | None) -> None:
    """Raise InvalidRequestError for a text that would be cut, as sentence-transformers does unless told otherwise."""
    config, tokenizer = server.engine.model_config.pooling, server.require_tokenizer()
    name = prompt_name or (config.default_prompt_name if config is not None else None)
    prefix = config.prompts[name] if config is not None and name is not None else ""
    limit = server.max_model_len
    for index, text in enumerate(texts):
        num_tokens = len(tokenizer.encode(prefix + text))
        if num_tokens > limit:
            raise InvalidRequestError(
                f"texts[{index}] has {num_tokens} tokens, but the longest input has {limit}; shorten it, or set "
                "truncate to START or END",
                "texts",
            )


def _bits(vector: Array) -> NDArray[np.uint8]:
    return np.packbits(vector > 0)


_COHERE_FIELDS = {"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens", "input": "texts"}
_COHERE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage", "corpus"),
    "classification": ("Classification",),
    "clustering": ("Clustering",),
}
_COHERE_TYPES: Mapping[str, Callable[[Array], Any]] = {
    "float": lambda vector: vector.tolist(),
    "int8": lambda vector: np.clip(np.rint(vector * 127), -128, 127).astype(np.int8).tolist(),
    "uint8": lambda vector: np.clip(np.rint(vector * 127) + 128, 0, 255).astype(np.uint8).tolist(),
    "binary": lambda vector: (_bits(vector).astype(np.int16) - 128).tolist(),
    "ubinary": lambda vector: _bits(vector).tolist(),
    "base64": lambda vector: base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii"),
}
