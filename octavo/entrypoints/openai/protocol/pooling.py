"""Embeddings, classes, scores and ranks: requests and responses of OpenAI's, vLLM's, Jina's and Cohere's shapes."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.entrypoints.openai.protocol.chat import MESSAGES_SCHEMA
from octavo.entrypoints.openai.protocol.common import Usage
from octavo.entrypoints.openai.protocol.completions import PROMPT_SCHEMA

Data = TypeVar("Data")


class ListResponse(msgspec.Struct, Generic[Data]):
    """Results in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[Data]
    usage: Usage
    object: str = "list"


class PoolingRequestBase(msgspec.Struct, kw_only=True):
    """What all of them may say; `None` means "not given" everywhere.

    truncate_prompt_tokens: keep at most so many tokens of each text; -1: as many as the model takes
    prompt_name, instruction: a prompt of the model's own by name, or a text, that goes before each input
    use_activation: normalise embeddings, turn scores into probabilities
    """

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None
    normalize: bool | None = None  # use_activation's older name
    softmax: bool | None = None  # the same
    activation: bool | None = None  # the same
    prompt_name: str | None = None
    instruction: str | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None

    # capabilities that are not built
    mm_processor_kwargs: Any = None
    padding: Any = None
    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None


class InputRequest(PoolingRequestBase, kw_only=True):
    """Texts or token ids (`input`), or a conversation (`messages`), exactly one of them."""

    input: Annotated[str | list[Any] | None, Meta(extra_json_schema=PROMPT_SCHEMA)] = None
    messages: Annotated[list[dict[str, Any]] | None, Meta(extra_json_schema=MESSAGES_SCHEMA)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class VectorRequest(InputRequest, kw_only=True):
    """How vectors are written: encoding_format float or base64, and for base64 embed_dtype and endianness."""

    encoding_format: str | None = None
    embed_dtype: str | None = None
    endianness: str | None = None
    dimensions: int | None = None


class EmbeddingRequest(VectorRequest, kw_only=True):
    """An embedding for each input."""


class EmbeddingData(msgspec.Struct):
    """One embedding, as numbers or as base64 of their bytes."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


EmbeddingResponse = ListResponse[EmbeddingData]


class PoolingRequest(VectorRequest, kw_only=True):
    """What the model makes of each input, for a task or the model's own."""

    task: str | None = None


class PoolingData(msgspec.Struct):
    """One result: numbers, for the token tasks a list of them for each token, or base64 of all of their bytes."""

    index: int
    data: list[Any] | str
    object: str = "pooling"


PoolingResponse = ListResponse[PoolingData]


class ClassificationRequest(InputRequest, kw_only=True):
    """Classes of each input."""


class ClassificationData(msgspec.Struct):
    """The probability of each label, and the likeliest label."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int
    object: str = "classification"


ClassificationResponse = ListResponse[ClassificationData]


class ScoreRequest(PoolingRequestBase, kw_only=True):
    """Two texts, one and many, or as many and many; under any of vLLM's names."""

    text_1: Any = None
    text_2: Any = None
    data_1: Any = None
    data_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None


class ScoreData(msgspec.Struct):
    """One pair's score."""

    index: int
    score: float
    object: str = "score"


ScoreResponse = ListResponse[ScoreData]


class RerankRequest(PoolingRequestBase, kw_only=True):
    """Documents to order by how well they answer a query. top_n: 0 or not given: all"""

    query: Any = None
    documents: list[Any] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    rank_fields: Any = None


class RerankDocument(msgspec.Struct):
    """A document's text."""

    text: str


class RerankResult(msgspec.Struct):
    """One document; index: its place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankResponse(msgspec.Struct):
    """Documents, best first."""

    id: str
    model: str
    usage: Usage
    results: list[RerankResult]


class CohereEmbedRequest(msgspec.Struct, kw_only=True):
    """Cohere's /v2/embed. truncate: NONE, START or END: which end of a long text is cut off"""

    model: str | None = None
    texts: list[str] | None = None
    inputs: Any = None
    images: Any = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: str | None = None
    priority: int | None = None


class CohereBilledUnits(msgspec.Struct):
    """What was read."""

    input_tokens: int


class CohereMeta(msgspec.Struct):
    """What Cohere's clients expect besides the embeddings."""

    billed_units: CohereBilledUnits
    api_version: dict[str, str] = msgspec.field(default_factory=lambda: {"version": "2"})


class CohereEmbedResponse(msgspec.Struct):
    """Embeddings by type: float, int8, uint8, binary, ubinary or base64."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"
