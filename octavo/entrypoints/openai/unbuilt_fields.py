"""Request fields of capabilities that are not built: known by name, refused when they ask for something.

A field that asks for nothing (null, false, an empty list, its default) is accepted. Each entry says which other
values are neutral, and what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import shown

_GUIDED = "it was replaced by structured_outputs, which takes json, regex, choice, grammar and more"
_LLAMA_CPP = "this is llama.cpp's field; use structured_outputs, which takes json, regex, choice, grammar and more"
_MULTIMODAL = "multimodal input is not built"
_TOOLS = "this is OpenAI's old way; use tools and tool_choice"

# field -> (values that ask for nothing, what is missing)
Unbuilt = Mapping[str, tuple[tuple[Any, ...], str]]
UNBUILT: Unbuilt = {
    "guided_json": ((), _GUIDED),
    "guided_regex": ((), _GUIDED),
    "guided_choice": ((), _GUIDED),
    "guided_grammar": ((), _GUIDED),
    "guided_decoding_backend": (("auto",), _GUIDED),
    "guided_whitespace_pattern": ((), _GUIDED),
    "grammar": (("",), _LLAMA_CPP),
    "json_schema": (({},), _LLAMA_CPP),
    "kv_transfer_params": (({},), "KV transfer is not built"),
    "ec_transfer_params": (({},), _MULTIMODAL),
    "watermarking": ((), "watermarks are not built"),
    "routed_experts_prompt_start": ((0,), "which experts a token went to is not returned"),
    "return_token_offsets": ((), "offsets of prompt tokens are not built"),
    "mm_payload": (({},), _MULTIMODAL),
    "mm_processor_kwargs": (({},), _MULTIMODAL),
    "media_io_kwargs": (({},), _MULTIMODAL),
    "prompt_embeds": ((), "prompt embeddings are not built"),
    "logits_processors": (([],), "the operator names them for all requests"),
    "suffix": (("",), "filling in the middle is not built"),
    "functions": (([],), _TOOLS),
    "function_call": (("none",), _TOOLS),
    "modalities": ((["text"],), "models answer in text only"),
    "audio": ((), "models answer in text only"),
    "prediction": ((), "predicted outputs are not built"),
    "web_search_options": ((), "web search is not built"),
    "verbosity": (("medium",), "models have no setting for verbosity"),
    "store": ((), "chat completions are not stored"),
    "service_tier": (("auto", "default"), "there is one service tier"),
}

POOLING_UNBUILT: Unbuilt = {
    "mm_processor_kwargs": (({},), _MULTIMODAL),
    "padding": ((), "texts are computed without padding"),
    "max_tokens_per_query": ((0,), "use truncate_prompt_tokens"),
    "max_tokens_per_doc": ((0,), "use truncate_prompt_tokens"),
    "rank_fields": (([], ["text"]), "documents are ordered by their text"),
}


def refuse_unknown(field: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise InvalidRequestError for a member of a field that asks for something and that nobody here reads."""
    for name, wish in value.items():
        if name not in known and wish is not None and wish is not False:
            raise InvalidRequestError(f"{field}.{name[:80]} is not known; {field} has {', '.join(known)}", field)


def refuse_unbuilt(request: msgspec.Struct, unbuilt: Unbuilt = UNBUILT) -> None:
    """Raise InvalidRequestError, naming the field, if a request asks for something that is not built."""
    for name in request.__struct_fields__:
        entry = unbuilt.get(name)
        if entry is None:
            continue
        value = getattr(request, name)
        neutral, reason = entry
        if value is None or value is False or value in neutral:
            continue
        raise InvalidRequestError(f"{name}={shown(value)} is not supported: {reason}; leave it out", name)
