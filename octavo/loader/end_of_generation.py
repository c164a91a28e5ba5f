"""Which tokens end an answer. Files name one end-of-sequence token; chat models end turns with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

# Names that mean "the turn is over" in every vocabulary that has them (list: llama.cpp, src/llama-vocab.cpp).
_UNAMBIGUOUS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)
# Names that are ordinary text elsewhere (</s> is strike-through in Gemma's vocabulary): only as control tokens.
_AS_CONTROL_TOKEN = frozenset(("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["))


def find_end_of_generation_ids(
    tokens: Sequence[str], control_ids: Set[int], special_ids: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the ids that end an answer, without repetition: the end-of-sequence id first, then by id.

    special_ids: ids by role; the roles eos, eot (end of turn) and eom (end of message) count
    """
    named = {special_ids[role] for role in ("eos", "eot", "eom") if role in special_ids}
    known = {
        token_id
        for token_id, token in enumerate(tokens)
        if token in _UNAMBIGUOUS or (token in _AS_CONTROL_TOKEN and token_id in control_ids)
    }
    names = {tokens[token_id] for token_id in known}
    # In the harmony format (<|return|>, <|call|>) and Solar's (<|flush|>, <|calls|>), <|end|> ends a message only.
    if {"<|return|>", "<|call|>"} <= names or ("<|flush|>" in names and names & {"<|call|>", "<|calls|>"}):
        known -= {token_id for token_id in known if tokens[token_id] == "<|end|>"}
    found = sorted((known | named) - {special_ids.get("eos")})
    return (special_ids["eos"], *found) if "eos" in special_ids else tuple(found)
