"""Models, tokenisation, and the small endpoints."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.entrypoints.openai.protocol.chat import MESSAGES_SCHEMA


class ModelPermission(msgspec.Struct):
    """A fixed answer: the server has no permissions. Clients of OpenAI's first API read it."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct):
    """A name under which the model, or an adapter of it, is served.

    root: the model as it was asked for at start, or the adapter's folder; parent: of an adapter, the model
    """

    id: str
    created: int
    root: str
    max_model_len: int
    permission: list[ModelPermission]
    object: str = "model"
    owned_by: str = "octavo"
    parent: str | None = None


class ModelList(msgspec.Struct):
    """Every name."""

    data: list[ModelCard]
    object: str = "list"


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """A LoRA adapter to load. load_inplace: the name may be known, and stands for this from now on."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """A LoRA adapter to forget; lora_int_id is not needed."""

    lora_name: str
    lora_int_id: int | None = None


class ServiceDone(msgspec.Struct):
    """What was done, in words."""

    message: str


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text (`prompt`) or a conversation (`messages`), exactly one of them.

    add_special_tokens: True for a text when not given, False for a conversation, whose template writes them
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, Meta(extra_json_schema=MESSAGES_SCHEMA)] = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeResponse(msgspec.Struct):
    """The ids that a generation request with the same input would run."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType | None = UNSET


class TokenizerInfo(msgspec.Struct):
    """What a client needs to know to tokenise by way of the server. Names as in Transformers' tokenizer_config.json.

    chat_template: the one that conversations are rendered with unless they bring their own
    """

    tokenizer_class: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    additional_special_tokens: list[str]
    chat_template: str | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text, special tokens included."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of the ids."""

    prompt: str


class VersionResponse(msgspec.Struct):
    """Octavo's version."""

    version: str


class LoadResponse(msgspec.Struct):
    """How many generation requests are in work."""

    server_load: int


class SleepState(msgspec.Struct):
    """Whether the engine sleeps."""

    is_sleeping: bool


class ResetResponse(msgspec.Struct):
    """Whether the prefix cache is empty now; False while its blocks are in use."""

    success: bool
