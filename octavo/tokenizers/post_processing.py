"""The begin/end-of-sequence template that encoding with special tokens applies."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import processors


def set_bos_eos_template(
    backend: tokenizers.Tokenizer,
    bos_token_id: int | None,
    eos_token_id: int | None,
    before_second: Sequence[int] | None = None,
) -> None:
    """Make the backend put these tokens around a text; None for neither.

    before_second: what a pair's second text begins with; None: what the first one does
    """
    specials = [(str(token_id), token_id) for token_id in (bos_token_id, eos_token_id) if token_id is not None]
    specials += [(str(token_id), token_id) for token_id in before_second or ()]
    before = [] if bos_token_id is None else [str(bos_token_id)]
    after = [] if eos_token_id is None else [str(eos_token_id)]
    first = [*before, "$A", *after]
    begins = before if before_second is None else [str(token_id) for token_id in before_second]
    second = [*(f"{name}:1" for name in begins), "$B:1", *(f"{name}:1" for name in after)]
    backend.post_processor = processors.TemplateProcessing(
        single=first, pair=[*first, *second], special_tokens=list(dict(specials).items())
    )
