"""What a grammar says of texts."""

from __future__ import annotations

import json

import numpy as np

from octavo.structured.guidance import GuidanceBackend, GuidanceMatcher
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.structured.source import lark_spec
from octavo.structured.vocabulary import num_mask_words
from tests.structured.vocabularies import EOS, NUM_TOKENS, spell

COMPACT = JsonStyle()


def job(constraint: str, value: object, style: JsonStyle = COMPACT) -> GrammarJob:
    """Return a job; value: as in StructuredOutputsParams."""
    is_json = constraint in ("json", "choice", "structural_tag")
    return GrammarJob(constraint, json.dumps(value) if is_json else str(value), style)


def begin(backend: GuidanceBackend, constraint: str, value: object, style: JsonStyle = COMPACT) -> GuidanceMatcher:
    return backend.compile(lark_spec(job(constraint, value, style)))


def allowed(backend: GuidanceBackend, matcher: GuidanceMatcher) -> set[int]:
    """Return the ids that may come next."""
    masks = np.zeros((1, num_mask_words(NUM_TOKENS)), np.int32)
    backend.fill_mask(matcher, masks)
    return set(np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist())


def admits(backend: GuidanceBackend, matcher: GuidanceMatcher, text: str) -> bool:
    """Say whether a whole text may be generated: every byte allowed when it comes, and an end after the last."""
    matcher = matcher.copy()
    for token_id in spell(text):
        if token_id not in allowed(backend, matcher) or not matcher.accept(token_id):
            return False
    return EOS in allowed(backend, matcher)
