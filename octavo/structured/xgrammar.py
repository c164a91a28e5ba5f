"""The backend on xgrammar (`pip install 'octavo[xgrammar]'`, which brings PyTorch): JSON, regex, choice, grammars.

Specs of the kinds json, regex, ebnf and lark. Schemas are prepared like those of the other backend; of what preparation
leaves, only keywords go on that xgrammar is known to enforce. It has no limits of its own on what a token may cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llguidance
import numpy as np

from octavo.structured.backend import Backend, Bitmask, GrammarError, Matcher
from octavo.structured.guidance import readable
from octavo.structured.json_schema import UNIQUE_PLACES
from octavo.structured.lark import lark_text
from octavo.structured.limits import GrammarLimits
from octavo.structured.messages import GrammarJob
from octavo.structured.source import IS_LARK, prepared_schema, regex_rule
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec

NAME = "xgrammar"
_MAX_WHITESPACE = 40
_ENFORCED = (
    *("type", "const", "enum", "anyOf", "$ref", "$defs", "properties", "required", "additionalProperties"),
    *("prefixItems", "items", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"),
)
_NAMED_SCHEMAS = ("properties", "$defs")


class XGrammarMatcher:
    """See Matcher."""

    __slots__ = ("_backend", "error", "inner")

    def __init__(self, inner: Any, backend: XGrammarBackend) -> None:
        self.inner = inner
        self.error: str | None = None
        self._backend = backend

    @property
    def is_complete(self) -> bool:
        if self.error is not None or not self.inner.is_completed():
            return False
        return self.inner.is_terminated() or self._backend.only_ends(self)

    def accept(self, token_id: int) -> bool:
        if self.error is None and not self.inner.accept_token(token_id):
            self.error = f"token {token_id} does not follow the grammar"
        return self.error is None

    def accept_unlocked(self, token_id: int) -> bool:
        return self.accept(token_id)  # the library offers nothing else

    def num_valid(self, token_ids: Sequence[int]) -> int:
        count = 0
        for token_id in token_ids:
            if not self.inner.accept_token(token_id):
                break
            count += 1
        self.inner.rollback(count)
        return count

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)

    def copy(self) -> XGrammarMatcher:
        return XGrammarMatcher(self.inner.fork(), self._backend)


class XGrammarBackend:
    """See Backend."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar  # here: an extra

        size = len(vocabulary.tokens)
        info = xgrammar.TokenizerInfo(
            vocabulary.tokens, xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=vocabulary.eos_ids
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._new_matcher: Callable[[Any], Any] = xgrammar.GrammarMatcher
        special = {*vocabulary.special_ids} - {*vocabulary.eos_ids}
        may_come = np.array([bool(token) and i not in special for i, token in enumerate(vocabulary.tokens)])
        may_come[vocabulary.eos_ids] = True
        self._may_come = np.packbits(may_come, bitorder="little").view(np.int32)
        is_end = np.zeros(size, np.bool_)
        is_end[vocabulary.eos_ids] = True
        self._ends = np.packbits(is_end, bitorder="little").view(np.int32)

    def compile(self, spec: GrammarSpec) -> XGrammarMatcher:
        assert spec.backend == NAME
        try:
            compiled = _COMPILERS[spec.kind](self._compiler, spec.source)
            return XGrammarMatcher(self._new_matcher(compiled), self)
        except RuntimeError as error:
            raise GrammarError(readable(str(error))) from None

    def fill_mask(self, matcher: Matcher, mask: Bitmask) -> None:
        assert isinstance(matcher, XGrammarMatcher)
        if matcher.error is not None:
            mask[:] = 0
            return
        if not matcher.inner.fill_next_token_bitmask(mask, 0):
            mask[:] = -1
        mask &= self._may_come

    def only_ends(self, matcher: XGrammarMatcher) -> bool:
        """Say whether nothing but an end of sequence may come next."""
        mask = np.zeros((1, len(self._may_come)), np.int32)
        self.fill_mask(matcher, mask)
        return not (mask & ~self._ends).any()


def make_backend(vocabulary: Vocabulary, limits: GrammarLimits) -> Backend:
    """Return the backend; xgrammar knows no limits."""
    return XGrammarBackend(vocabulary)


def _compile_json(compiler: Any, source: str) -> Any:
    described = json.loads(source)
    whitespace = {"any_whitespace": False, "separators": (",", ":")}
    if not described["compact"]:
        whitespace = {"any_whitespace": True, "max_whitespace_cnt": _MAX_WHITESPACE}
    return compiler.compile_json_schema(json.dumps(described["schema"]), strict_mode=False, **whitespace)


_COMPILERS: Mapping[str, Callable[[Any, str], Any]] = {
    "json": _compile_json,
    "regex": lambda compiler, source: compiler.compile_regex(source),
    "ebnf": lambda compiler, source: compiler.compile_grammar(source),
    "lark": lambda compiler, source: compiler.compile_lark(source),
}

# -- specs -------------------------------------------------------------------------------------------------------------


def xgrammar_spec(job: GrammarJob) -> GrammarSpec:
    """Return the job's grammar; raises GrammarError for what cannot be enforced."""
    maker = _MAKERS.get(job.constraint)
    if maker is None:
        raise GrammarError(f"the backend xgrammar does not do {job.constraint} here; use backend guidance")
    return maker(job)


def _json_spec(job: GrammarJob) -> GrammarSpec:
    if job.style.whitespace_pattern is not None:
        raise GrammarError("whitespace_pattern needs the backend guidance")
    schema = {"type": "object"} if job.constraint == "json_object" else json.loads(job.text)
    prepared = prepared_schema(schema, job.style)
    prepared.pop("x-guidance")
    places = prepared.pop(UNIQUE_PLACES, None)
    _check_keywords(prepared)
    source = json.dumps({"schema": prepared, "compact": job.style.compact})
    return GrammarSpec(NAME, "json", source, "" if places is None else json.dumps(places))


def _check_keywords(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword not in _ENFORCED:
            raise GrammarError(f"keyword {keyword!r}: the backend xgrammar does not enforce it exactly; use guidance")
        below = value.values() if keyword in _NAMED_SCHEMAS else value if isinstance(value, list) else [value]
        if keyword not in ("const", "enum"):
            for each in below:
                _check_keywords(each)


def _regex_spec(job: GrammarJob) -> GrammarSpec:
    lark = llguidance.LLMatcher.grammar_from_lark(f"start: {regex_rule(job.text)}")
    error = llguidance.LLMatcher.validate_grammar(lark)  # it says what is wrong, and knows no look-around to ignore
    if error:
        raise GrammarError(readable(error))
    return GrammarSpec(NAME, "regex", job.text)


def _choice_spec(job: GrammarJob) -> GrammarSpec:
    return GrammarSpec(NAME, "ebnf", "root ::= " + " | ".join(map(lark_text, json.loads(job.text))))


def _grammar_spec(job: GrammarJob) -> GrammarSpec:
    return GrammarSpec(NAME, "lark" if IS_LARK.search(job.text) else "ebnf", job.text)


_MAKERS: Mapping[str, Callable[[GrammarJob], GrammarSpec]] = {
    "json": _json_spec,
    "json_object": _json_spec,
    "regex": _regex_spec,
    "choice": _choice_spec,
    "grammar": _grammar_spec,
}
