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
import llguidance.numpy
import numpy as np

from octavo.structured.json_schema import SchemaRefusedError, prepare_schema

EOS = 256
MAX_BYTES = 1500
HASTEN_AFTER = 150
CLOSERS = frozenset(b'"}]')


def finite(text: str) -> float:
    """Read a number; raise OverflowError for one like 1e999: the validator fails on infinities."""
    number = float(text)
    if math.isinf(number):
        raise OverflowError(text)
    return number


class ByteTokens:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = [*(bytes([value]) for value in range(256)), b"<eos>"]
    special_token_ids = [EOS]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Oracle:
    def __init__(self) -> None:
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokens()))
        self.mask = llguidance.numpy.allocate_token_bitmask(1, 257)
        self.weights = np.full(257, 0.3)
        self.weights[[*range(48, 58), *b"abcxyzAZ_-.:/@ "]] = 3.0
        self.weights[list(b'"}]')] = 12.0
        self.weights[[92, *range(0x80, 256)]] = 0.15
        self.weights[EOS] = 60.0

    def matcher(self, schema: Any) -> llguidance.LLMatcher:
        options = {"whitespace_flexible": False}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        return llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)

    def judge(self, job: dict[str, Any], num_walks: int) -> dict[str, Any]:
        schema = job["schema"]
        validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        result: dict[str, Any] = {"leaks": [], "keyword": "", "reason": "", "invalid_schema": False, "prepared": False}
        try:
            validator_class.check_schema(schema)
        except Exception:
            result["invalid_schema"] = True
        validator = validator_class(schema)
        try:
            alone = self.matcher(schema)
            result["alone"] = not alone.is_error()
        except ValueError:
            result["alone"] = False
        started = time.perf_counter()
        try:
            prepared = prepare_schema(schema)
        except SchemaRefusedError as error:
            result |= {"keyword": error.keyword, "reason": str(error)}
            return result
        finally:
            result["prepare_s"] = time.perf_counter() - started
        try:
            matcher = self.matcher(prepared)
        except ValueError as error:
            result |= {"keyword": "(backend)", "reason": str(error)}
            return result
        if matcher.is_error():
            result |= {"keyword": "(backend)", "reason": matcher.get_error()}
            return result
        result["prepared"] = True
        result |= self.walk_all(matcher, validator, num_walks, seed=len(json.dumps(schema)))
        if "instances" in job:
            result["accepted"] = [self.accepts(matcher, instance) for instance in job["instances"]]
        return result

    def walk_all(self, matcher: Any, validator: Any, num_walks: int, seed: int) -> dict[str, Any]:
        chooser = random.Random(seed)
        texts = [self.walk(matcher, chooser) for _ in range(num_walks)]
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

    def walk(self, matcher: Any, chooser: random.Random) -> str | None:
        """Return a random text of the grammar, None if it does not come to an end."""
        matcher.reset()
        written = bytearray()
        haste = 1.0
        while len(written) < MAX_BYTES:
            llguidance.numpy.fill_next_token_bitmask(matcher, self.mask, 0)
            if matcher.is_error():
                raise RuntimeError(matcher.get_error())
            allowed = np.flatnonzero(np.unpackbits(self.mask.view(np.uint8), bitorder="little")[:257])
            if len(allowed) == 0:
                return None
            weights = self.weights[allowed]
            if len(written) > HASTEN_AFTER:
                haste *= 1.05
                weights = weights * np.where(np.isin(allowed, [*CLOSERS, EOS]), haste, 1.0)
            token = int(allowed[0])
            if len(allowed) > 1:
                token = int(chooser.choices(allowed.tolist(), weights.tolist())[0])
            if token == EOS:
                return written.decode()
            assert matcher.consume_token(token)
            written.append(token)
        return None

    def accepts(self, matcher: Any, instance: Any) -> bool:
        """Tell whether an instance, written without spaces, is a text of the grammar."""
        try:
            return self.accepts_text(matcher, json.dumps(instance, separators=(",", ":"), ensure_ascii=False))
        except UnicodeEncodeError:
            return False

    def accepts_text(self, matcher: Any, text: str) -> bool:
        matcher.reset()
        tokens = list(text.encode())
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
