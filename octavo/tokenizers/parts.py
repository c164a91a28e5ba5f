"""What a tokenizer consists of, whatever file it came from: the bridge between the readers and `Tokenizer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import tokenizers


@dataclass(frozen=True)
class TokenizerParts:
    """A backend and the facts around it.

    backend: turns text into ids; holds the vocabulary, the added tokens and the begin/end-of-sequence template
    end_of_generation_ids: ids that end an answer, the end-of-sequence id first; empty when the files name none
    chat_templates: Jinja source by name; the usual one is "default"
    truncation_side: the end of a long text that an embedding model cuts off
    source: the file or folder, for error messages
    """

    backend: tokenizers.Tokenizer
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    end_of_generation_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    source: str = "tokenizer"
    truncation_side: Literal["left", "right"] = "right"
