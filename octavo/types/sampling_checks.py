"""Checks of single parameter values: each returns the value in its canonical type or raises InvalidRequestError.

Knows names, types and ranges; never a model, a tokenizer or a whole request.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping

from octavo.errors import InvalidRequestError

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1


def shown(value: object) -> str:
    """Return a value as errors show it; long ones are cut."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def wrong(name: str, expected: str, got: object, parameter: str | None = None) -> InvalidRequestError:
    """Build the error for `name`: a parameter, or a place inside `parameter`."""
    return InvalidRequestError(f"{name} must be {expected}, got {shown(got)}", parameter=parameter or name)


def as_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return value as a Python int in low..high. A bool is not an int, nor is 3.0."""
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool):
        raise wrong(name, bounds, value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the question is whether it can
    except TypeError:
        raise wrong(name, bounds, value) from None
    if number < low or (high is not None and number > high):
        raise wrong(name, bounds, value)
    return number


def as_optional_int(name: str, value: object, low: int, high: int | None = None) -> int | None:
    """Return None for None, else `as_int`."""
    return None if value is None else as_int(name, value, low, high)


def as_float(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> float:
    """Return value as a finite float in low..high (low excluded if low_open)."""
    left = "(" if low_open else "["
    expected = f"a finite number in {left}{low:g}, {high:g}]" if high != math.inf else _above(low, low_open)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong(name, expected, value)
    try:
        number = float(value)
    except OverflowError:
        raise wrong(name, expected, value) from None
    if not math.isfinite(number) or number > high or number < low or (low_open and number == low):
        raise wrong(name, expected, value)
    return number


def as_bool(name: str, value: object) -> bool:
    """Return value, which must be a bool."""
    if not isinstance(value, bool):
        raise wrong(name, "a bool", value)
    return value


def as_texts(name: str, value: object) -> list[str]:
    """Return a list of non-empty strings: a string becomes a list of one, None an empty list."""
    if value is None:
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        raise wrong(name, "a string or a list of strings", value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise wrong(name, "made of non-empty strings", text)
        if not is_valid_unicode(text):
            raise wrong(name, "made of valid Unicode, without lone surrogates", text)
    return list(texts)


def is_valid_unicode(text: str) -> bool:
    """Say whether text can be written as UTF-8: a lone surrogate can be in no answer, and crosses no process border."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_token_ids(name: str, value: object, max_len: int | None = None) -> list[int]:
    """Return a list of ids >= 0 in the order given, without duplicates."""
    if isinstance(value, (str, bytes, Mapping)):
        raise wrong(name, "a list of token ids", value)
    try:
        items = iter(value)  # type: ignore[call-overload]  # the question is whether it can
    except TypeError:
        raise wrong(name, "a list of token ids", value) from None
    ids = list(dict.fromkeys(as_int(name, token_id, 0) for token_id in items))
    if max_len is not None and len(ids) > max_len:
        raise wrong(name, f"at most {max_len} token ids", f"{len(ids)} ids")
    return ids


def as_logit_bias(name: str, value: object, limit: float) -> dict[int, float]:
    """Return {token id: bias}: keys may be decimal strings (JSON has no other), biases are clamped to +-limit."""
    if not isinstance(value, Mapping):
        raise wrong(name, "a mapping of token ids to numbers", value)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id: object = key
        if isinstance(key, str):
            if not (key.isascii() and key.lstrip("-").isdigit()):
                raise wrong(name, "a mapping whose keys are token ids", key)
            token_id = int(key)
        number = as_float(name, bias, -math.inf, math.inf)
        biases[as_int(name, token_id, 0)] = max(-limit, min(limit, number))
    return biases


def as_extra_args(name: str, value: object) -> dict[str, object]:
    """Return a mapping with text keys whose integers, at any depth, fit 64 bits (they cross processes as msgpack)."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong(name, "a mapping with text keys", value)
    pending: list[object] = list(value.values())
    seen: set[int] = set()  # containers, by identity: one may hold itself
    while pending:
        item = pending.pop()
        if isinstance(item, (Mapping, list, tuple)):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, int) and not INT64_MIN <= item <= UINT64_MAX:
            raise wrong(name, "made of integers that fit 64 bits", item)
        if isinstance(item, Mapping):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
    return dict(value)


def check_ids_below(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raise unless every id is inside the logits' width."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise wrong(name, f"made of token ids from 0 to {vocab_size - 1} (the width of the logits)", token_id)


def _above(low: float, low_open: bool) -> str:
    if low == -math.inf:
        return "a finite number"
    return f"a finite number {'above' if low_open else 'of at least'} {low:g}"
