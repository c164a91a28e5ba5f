"""Structs of users' parameters: a name that they do not have is refused, with what stands in its place."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.errors import UnknownParameterError
from octavo.utils.names import closest_names

_GRAMMAR = "use structured_outputs=StructuredOutputsParams(…), which takes json, regex, choice, grammar and more"
_BEAMS = "use LLM.beam_search with BeamSearchParams"
_ENGINE = "name classes for all requests: LLM(…, logits_processors=[…])"
_CUT = "give it to the call: tokenization_kwargs={'truncate_prompt_tokens': …}"
# names that older versions of vLLM had, and other programs have
_ELSEWHERE = {
    **dict.fromkeys(("guided_decoding", "guided_json", "guided_regex", "guided_choice", "guided_grammar"), _GRAMMAR),
    **dict.fromkeys(("response_format", "json_schema", "grammar"), _GRAMMAR),
    **dict.fromkeys(("use_beam_search", "num_beams", "early_stopping", "length_penalty", "beam_width"), _BEAMS),
    **dict.fromkeys(("max_new_tokens", "max_length", "max_completion_tokens", "n_predict"), "use max_tokens"),
    **dict.fromkeys(("best_of", "num_return_sequences"), "use n"),
    **dict.fromkeys(("stop_strings", "stop_sequences"), "use stop"),
    **dict.fromkeys(("normalize", "softmax", "activation"), "use use_activation"),
    "logits_processors": _ENGINE,
    "truncate_prompt_tokens": _CUT,
    "do_sample": "use temperature, where 0 takes the likeliest token",
    "eos_token_id": "use stop_token_ids",
    "repeat_penalty": "use repetition_penalty",
    "top_logprobs": "use logprobs",
    "backend": "choose it for all requests: LLM(…, structured_outputs_config={'backend': …})",
}


class NamedParameters(msgspec.StructMeta):
    """The class of such structs. Calling one raises UnknownParameterError for names that it does not have."""

    def __call__(cls, *unnamed: Any, **fields: Any) -> Any:
        if unnamed:
            first = cls.__struct_fields__[0]
            raise UnknownParameterError(
                f"{cls.__name__} takes parameters by name, such as {first}=…, got {unnamed!r:.80}"
            )
        for name in fields.keys() - cls.__struct_fields__:
            known = [one for one in cls.__struct_fields__ if not one.startswith("_")]
            hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else closest_names(name, known)
            raise UnknownParameterError(f"{cls.__name__} has no parameter {name!r}{hint}", name)
        return super().__call__(**fields)
