"""Judges a schema: does the backend compile it, alone and prepared, and is every text that it admits valid?"""

from __future__ import annotations

import json
import math
import random
import time
import warnings
from typing import Any

import jsonschema
import jsonschema.validators
import llguidance
import numpy as np

from octavo.structured.backend import Backend, GrammarError, Matcher, make_backend
from octavo.structured.json_schema import SchemaRefusedError, prepare_schema
from octavo.structured.limits import GrammarLimits
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.structured.source import lark_spec
from octavo.structured.vocabulary import Vocabulary

EOS = 256
NUM_TOKENS = 288
MAX_BYTES = 1500
HASTEN_AFTER = 150
CLOSERS = frozenset(b'"}]')


def finite(text: str) -> float:
    """Read a number; raise OverflowError for one like 1e999: the validator fails on infinities."""
    number = float(text)
    if math.isinf(number):
        raise OverflowError(text)
    return number


class Grammar:
    """A schema's grammar as the engine has it, over single bytes; `error` if it has none."""

    def __init__(self, backend: Backend, schema: Any) -> None:
        self.backend = backend
        self.error = ""
        self.mask = np.zeros((1, NUM_TOKENS // 32), np.int32)
        try:
            self.begin = backend.compile(lark_spec(GrammarJob("json", json.dumps(schema), JsonStyle())))
        except GrammarError as error:
            self.error = str(error)

    def allowed(self, matcher: Matcher) -> list[int]:
        """Return the bytes that may come next, and EOS where the text may end."""
        self.backend.fill_mask(matcher, self.mask)
        if matcher.error is not None:
            raise RuntimeError(matcher.error)
        ids: list[int] = np.flatnonzero(np.unpackbits(self.mask.view(np.uint8), bitorder="little")).tolist()
        return ids


class Oracle:
    def __init__(self) -> None:
        tokens = [*(bytes([value]) for value in range(256)), *[b""] * (NUM_TOKENS - 256)]
        self.backend = make_backend("guidance", Vocabulary(tokens, [EOS], [EOS]), GrammarLimits())
        self.weights = np.full(257, 0.3)
        self.weights[[*range(48, 58), *b"abcxyzAZ_-.:/@ "]] = 3.0
        self.weights[list(b'"}]')] = 12.0
        self.weights[[92, *range(0x80, 256)]] = 0.15
        self.weights[EOS] = 60.0

    def grammar(self, schema: Any) -> Grammar:
        return Grammar(self.backend, schema)

    def compiles_alone(self, schema: Any) -> bool:
        """Tell whether the library takes the schema as it is."""
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError:
            return False
        return not llguidance.LLMatcher.validate_grammar(text)

    def judge(self, job: dict[str, Any], num_walks: int) -> dict[str, Any]:
        schema = job["schema"]
        validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        result: dict[str, Any] = {"leaks": [], "keyword": "", "reason": "", "invalid_schema": False, "prepared": False}
        try:
            validator_class.check_schema(schema)
        except Exception:
            result["invalid_schema"] = True
        validator = validator_class(schema)
        result["alone"] = self.compiles_alone(schema)
        started = time.perf_counter()
        try:
            prepare_schema(schema)
        except SchemaRefusedError as error:
            result |= {"keyword": error.keyword, "reason": str(error)}
            return result
        finally:
            result["prepare_s"] = time.perf_counter() - started
        grammar = self.grammar(schema)
        if grammar.error:
            result |= {"keyword": "(backend)", "reason": grammar.error}
            return result
        result["prepared"] = True
        result |= self.walk_all(grammar, validator, num_walks, seed=len(json.dumps(schema)))
        if "instances" in job:
            result["accepted"] = [self.accepts(grammar, instance) for instance in job["instances"]]
        return result

    def walk_all(self, grammar: Grammar, validator: Any, num_walks: int, seed: int) -> dict[str, Any]:
        chooser = random.Random(seed)
        texts = [self.walk(grammar, chooser) for _ in range(num_walks)]
        finished = [text for text in texts if text is not None]
        return {
            "num_texts": len(finished),
            "num_unfinished": len(texts) - len(finished),
            "leaks": [leak for text in finished if (leak := self.leak(validator, text))][:3],
        }

    def leak(self, validator: Any, text: str) -> str | None:
        """Return what is wrong with a text, None for a valid instance."""
        try:
            instance = json.loads(text, parse_float=finite)
        except OverflowError:
            return None
        except ValueError as error:
            return f"no JSON: {error}: {text[:300]}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                error = next(validator.iter_errors(instance), None)
            except BaseException as failure:  # a validator goes round in circles, or panics
                return None if "Recursi" in repr(failure) else f"oracle failed: {failure!r:.100}: {text[:200]}"
        return None if error is None else f"{error.message[:200]} (at {error.json_path}): {text[:400]}"

    def walk(self, grammar: Grammar, chooser: random.Random) -> str | None:
        """Return a random text of the grammar, None if it does not come to an end."""
        matcher = grammar.begin.copy()
        written = bytearray()
        haste = 1.0
        while len(written) < MAX_BYTES:
            allowed = grammar.allowed(matcher)
            if not allowed:
                raise RuntimeError(f"nothing can follow {written!r}")
            weights = self.weights[allowed]
            if len(written) > HASTEN_AFTER:
                haste *= 1.05
                weights = weights * np.where(np.isin(allowed, [*CLOSERS, EOS]), haste, 1.0)
            token = chooser.choices(allowed, weights.tolist())[0] if len(allowed) > 1 else allowed[0]
            if token == EOS:
                return written.decode()
            if not matcher.accept(token):
                assert "max is" in (matcher.error or ""), f"a token that was allowed is none: {matcher.error}"
                return None  # beyond what a token may cost
            written.append(token)
        return None

    def accepts(self, grammar: Grammar, instance: Any) -> bool:
        """Tell whether an instance, written without spaces, is a text of the grammar."""
        try:
            return self.accepts_text(grammar, json.dumps(instance, separators=(",", ":"), ensure_ascii=False))
        except UnicodeEncodeError:
            return False

    def accepts_text(self, grammar: Grammar, text: str) -> bool:
        matcher = grammar.begin.copy()
        return all(map(matcher.accept, text.encode())) and EOS in grammar.allowed(matcher)
