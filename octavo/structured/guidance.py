"""The backend on llguidance: grammars in its dialect of Lark, JSON schemas inside them, masks from its parser.

Specs are Lark, of kind "lark" or, when nothing but a JSON schema is in them, "schema". Every grammar starts with
`%llguidance {"no_forcing": true}`: where only one text can follow, any tokens that spell it are allowed, and the model
takes those that it likes; the library never calls a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import llguidance
import numpy as np

from octavo.structured.backend import Backend, Bitmask, GrammarError, Matcher
from octavo.structured.limits import GrammarLimits
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec

NAME = "guidance"
LARK, SCHEMA = "lark", "schema"  # kinds of specs
LARK_HEADER = '%llguidance {"no_forcing": true}\n'
_MAX_MESSAGE_CHARS = 500
_NOTHING_FITS = "NoExtensionBias"  # the library's name for a grammar in which nothing can begin
_BLAMED = (("patternProperty", "patternProperties"), ("regex", "pattern"))  # in the library's words -> a keyword
_PLACE = re.compile(r"\bat (\d+)\(\d+\): ")  # the first line is the header
_QUOTED_LINE = re.compile(r"\s*(\d+ \|.*|\^)$")


class GuidanceMatcher:
    """See Matcher."""

    __slots__ = ("_backend", "inner")

    def __init__(self, inner: llguidance.LLMatcher, backend: GuidanceBackend) -> None:
        self.inner = inner
        self._backend = backend

    @property
    def is_complete(self) -> bool:
        return self.inner.is_stopped() and not self.inner.is_error()

    @property
    def error(self) -> str | None:
        return readable(self.inner.get_error()) if self.inner.is_error() else None

    def accept(self, token_id: int) -> bool:
        return self.inner.consume_token(token_id)

    def accept_unlocked(self, token_id: int) -> bool:
        # the library lets go of the lock when it advances two, but not for one: the other is broken, and costs nothing
        pair = [(self.inner, token_id), (self._backend.broken_matcher.deep_copy(), token_id)]
        return self._backend.executor.consume_token_par(pair)[0]

    def num_valid(self, token_ids: Sequence[int]) -> int:
        return self.inner.validate_tokens(list(token_ids))

    def rollback(self, num_tokens: int) -> None:
        assert self.inner.rollback(num_tokens), "a matcher goes back by tokens that it has accepted"

    def copy(self) -> GuidanceMatcher:
        return GuidanceMatcher(self.inner.deep_copy(), self._backend)


class GuidanceBackend:
    """See Backend."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._tokenizer = llguidance.LLTokenizer(  # it asks for these attributes, not for the class
            _TokenizerFacts(vocabulary),  # type: ignore[arg-type]
            eos_token=vocabulary.eos_ids,
        )
        self._limits = {
            LARK: _parser_limits(limits, limits.max_row_items),
            SCHEMA: _parser_limits(limits, limits.max_schema_row_items),
        }

    @cached_property
    def executor(self) -> llguidance.LLExecutor:
        """A thread of the library, with the priority of whoever asks first."""
        return llguidance.LLExecutor(1)

    @cached_property
    def broken_matcher(self) -> llguidance.LLMatcher:
        """A matcher that takes no token."""
        return llguidance.LLMatcher(self._tokenizer, "", log_level=0)

    def compile(self, spec: GrammarSpec) -> GuidanceMatcher:
        assert spec.backend == NAME
        grammar = llguidance.LLMatcher.grammar_from_lark(spec.source)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits[spec.kind])
        if matcher.is_error():
            error = readable(matcher.get_error())
            raise GrammarError(_schema_error(error) if spec.kind == SCHEMA else error)
        ignored = matcher.get_grammar_warnings()
        if ignored:
            raise GrammarError(readable("; ".join(ignored)))
        return GuidanceMatcher(matcher, self)

    def fill_mask(self, matcher: Matcher, mask: Bitmask) -> None:
        assert mask.flags.c_contiguous and mask.dtype == np.int32 and len(mask) == 1
        assert isinstance(matcher, GuidanceMatcher)
        matcher.inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)  # without the GIL


class _TokenizerFacts:
    """A vocabulary under the names that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        raise AssertionError("grammars are compiled with no_forcing, so no text is tokenised")


def make_backend(vocabulary: Vocabulary, limits: GrammarLimits) -> Backend:
    """Return the backend."""
    return GuidanceBackend(vocabulary, limits)


def _parser_limits(limits: GrammarLimits, max_row_items: int) -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=limits.compile_fuel,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_items_in_row=max_row_items,
        max_lexer_states=limits.max_lexer_states,
        max_grammar_size=limits.max_grammar_size,
        verbose_errors=False,
    )


def _schema_error(message: str) -> str:
    """Name the keyword to blame where the library has no place for what it says."""
    keyword = next((named for said, named in _BLAMED if said in message), None)
    what = "the schema" if keyword is None else f"keyword {keyword!r}"
    return f"{what} at #: {message}"


def readable(message: str) -> str:
    """Shorten the library's message to its first lines: what follows is the grammar, the parser's state or a trace."""
    text = re.split("<non-verbose/>|<state>|<backtrace>", message)[0].strip()
    if text == _NOTHING_FITS:
        return "no text satisfies it"
    text = _PLACE.sub(lambda match: "" if match[1] == "2" else f"line {int(match[1]) - 1}: ", text)
    lines = [line for line in text.splitlines() if not _QUOTED_LINE.match(line)]
    return " ".join(" ".join(lines).split())[:_MAX_MESSAGE_CHARS]
