"""Numbers: which values a shape holds, and how to say it so that llguidance 1.9.1 enforces it exactly.

What its number grammar cannot do, found by experiment, and what is done here about it:
- bounds are doubles turned into 64-bit integers: bounds beyond 2^53 are rounded inwards, beyond 2^63 - 1024 cut off;
- an integer constant of -2^63 ends the process: constants beyond 2^53 that are not exact in 64 bits are refused;
- fractions of more than 15 digits are read one unit off, and more than 18 decimals are misread: bounds are rounded
  inwards;
- an excluded bound lets 0.99...9 through, which every validator reads as 1.0: the next number inwards is used;
- multiples of 0.01 hold for decimal fractions but some fail in validators, which compute with doubles: those that hold
  in both are listed where the bounds leave few, otherwise only steps that are exact in binary pass.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction

from octavo.structured.json_schema.errors import SchemaRefusedError
from octavo.structured.json_schema.shapes import NumberShape
from octavo.structured.json_schema.values import JsonValue, Number

MAX_INTEGER = 2**63 - 1024  # the largest double below 2^63
MAX_OPEN_ENDED = 10**18 - 1  # from there on, llguidance cannot write "at least" without an upper bound
MAX_DIGITS = 15
MAX_DECIMALS = 18
MAX_FRACTION = 1e15
MAX_MULTIPLE = 2**31
MAX_LISTED = 2_000  # multiples written out one by one


def number_in_shape(value: Number, shape: NumberShape) -> bool:
    """Tell whether a number is in a shape, as a validator that computes with doubles sees it."""
    if shape.values is not None and value not in shape.values:
        return False
    if shape.integer and not (isinstance(value, int) or value.is_integer()):
        return False
    if shape.low is not None and (value < shape.low or (shape.low_open and value == shape.low)):
        return False
    if shape.high is not None and (value > shape.high or (shape.high_open and value == shape.high)):
        return False
    return all(is_multiple(value, divisor) for divisor in shape.multiples_of)


def is_multiple(value: Number, divisor: Number) -> bool:
    """Tell whether a number is a multiple both in decimals and in doubles."""
    if Fraction(repr(value)) % Fraction(repr(divisor)):
        return False
    try:
        return isinstance(divisor, int) or float(value / divisor).is_integer()
    except OverflowError:
        return False


def number_shape_is_empty(shape: NumberShape) -> bool:
    if shape.values is not None:
        return not shape.values
    if shape.low is None or shape.high is None:
        return False
    if shape.integer:
        low, high = integer_bounds(shape)
        assert low is not None and high is not None
        step = integer_step(shape)
        return low > high or (step is not None and -(-low // step) * step > high)
    return shape.low > shape.high or (shape.low == shape.high and (shape.low_open or shape.high_open))


def integer_bounds(shape: NumberShape) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer within the bounds."""
    low = high = None
    if shape.low is not None:
        low = math.floor(shape.low) + 1 if shape.low_open else math.ceil(shape.low)
    if shape.high is not None:
        high = math.ceil(shape.high) - 1 if shape.high_open else math.floor(shape.high)
    return low, high


def integer_step(shape: NumberShape) -> int | None:
    """Return the least common multiple of 1 and all `multiples_of`; None where inexact in doubles or too large."""
    step = Fraction(1)
    for divisor in shape.multiples_of:
        exact = Fraction(divisor)
        if exact != Fraction(repr(divisor)):
            return None
        step = Fraction(
            math.lcm(step.numerator * exact.denominator, exact.numerator * step.denominator),
            step.denominator * exact.denominator,
        )
    return step.numerator if step.denominator == 1 and step.numerator <= MAX_MULTIPLE else None


def write_numbers(shape: NumberShape) -> JsonValue:
    """Return the schema of a shape for the backend, False where nothing is left. Raises SchemaRefusedError."""
    if shape.values is not None:
        return {"enum": [write_constant(value, shape.pointer) for value in shape.values]}
    listed = listed_multiples(shape)
    if listed is not None:
        return {"enum": listed} if listed else False  # type: ignore[dict-item]
    if shape.integer or any(is_whole(divisor) for divisor in shape.multiples_of):
        return write_integers(shape)
    return write_fractions(shape)


def is_whole(value: Number) -> bool:
    return isinstance(value, int) or value.is_integer()


def write_constant(value: Number, pointer: str) -> Number:
    if is_whole(value):
        whole = int(value)
        if abs(whole) > MAX_INTEGER or int(float(whole)) != whole:
            raise SchemaRefusedError(f"the backend cannot write {value} exactly", "enum", pointer)
        return whole
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    if len(digits) > MAX_DIGITS or -int(exponent) > MAX_DECIMALS:
        raise SchemaRefusedError(f"the backend cannot write {value} exactly", "enum", pointer)
    return value


def write_integers(shape: NumberShape) -> JsonValue:
    step = integer_step(shape)
    if step is None:
        raise SchemaRefusedError(
            "only multiples that are exact in binary and below 2^31 can be enforced", "multipleOf", shape.pointer
        )
    low, high = integer_bounds(shape)
    if low is not None and low > MAX_OPEN_ENDED:
        high = MAX_INTEGER if high is None else high
    if high is not None and high < -MAX_OPEN_ENDED:
        low = -MAX_INTEGER if low is None else low
    schema: dict[str, JsonValue] = {"type": "integer"}
    if low is not None:
        low = max(low, -MAX_INTEGER)
        while int(float(low)) < low:
            low = int(math.nextafter(float(low), math.inf))
        schema["minimum"] = low = int(float(low))
    if high is not None:
        high = min(high, MAX_INTEGER)
        while int(float(high)) > high:
            high = int(math.nextafter(float(high), -math.inf))
        schema["maximum"] = high = int(float(high))
    if step != 1:
        schema["multipleOf"] = step
    return False if low is not None and high is not None and low > high else schema


def write_fractions(shape: NumberShape) -> JsonValue:
    schema: dict[str, JsonValue] = {"type": "number"}
    low = None if shape.low is None else inwards(shape.low, shape.low_open)
    high = None if shape.high is None else -inwards(-shape.high, shape.high_open)
    if low is not None:
        schema["minimum"] = low
    if high is not None:
        schema["maximum"] = high
    if shape.multiples_of:
        schema["multipleOf"] = fraction_step(shape)
    return False if low is not None and high is not None and low > high else schema


def inwards(bound: Number, is_open: bool) -> float:
    """Return a number from a lower bound on, as close as the backend reads it right."""
    limit = Decimal(MAX_FRACTION)
    exact = Decimal(bound) if isinstance(bound, int) else Decimal(repr(bound))
    if exact > limit:
        raise SchemaRefusedError(f"no number above {bound} can be enforced", "minimum", "")
    if exact < -limit:
        return -MAX_FRACTION
    last_digit = -MAX_DECIMALS if exact == 0 else max(exact.adjusted() + 1 - MAX_DIGITS, -MAX_DECIMALS)
    with localcontext() as context:
        context.prec = 60
        step = Decimal(1).scaleb(last_digit)
        rounded = exact.quantize(step, rounding=ROUND_CEILING)
        while rounded < exact or (is_open and float(rounded) <= bound):
            rounded += step
    return float(rounded) + 0.0


def listed_multiples(shape: NumberShape) -> list[Number] | None:
    """Return all numbers of a shape, where its multiples are inexact in binary but its bounds leave few of them."""
    inexact = [divisor for divisor in shape.multiples_of if Fraction(divisor) != Fraction(repr(divisor))]
    if not inexact or shape.low is None or shape.high is None:
        return None
    step = Fraction(repr(inexact[0]))
    first, last = math.ceil(Fraction(repr(shape.low)) / step), math.floor(Fraction(repr(shape.high)) / step)
    if last - first > MAX_LISTED:
        return None
    candidates = [float(step * factor) for factor in range(first, last + 1)]
    whole = [int(value) if value.is_integer() else value for value in candidates]
    return [
        write_constant(value, shape.pointer)
        for value in whole
        if Fraction(repr(value)) % step == 0 and number_in_shape(value, shape)
    ]


def fraction_step(shape: NumberShape) -> float:
    """Return the least common multiple of fractions that are exact in binary, such as 0.25."""
    numerator, denominator = 1, 1
    for index, divisor in enumerate(shape.multiples_of):
        exact = Fraction(divisor)
        if exact != Fraction(repr(divisor)) or exact.denominator > 2**10:
            raise SchemaRefusedError(
                f"multiples of {divisor} are not exact in binary, so validators disagree; use an integer",
                "multipleOf",
                shape.pointer,
            )
        if index == 0:
            numerator, denominator = exact.numerator, exact.denominator
        else:
            numerator = math.lcm(numerator * exact.denominator, exact.numerator * denominator)
            denominator *= exact.denominator
    return float(Fraction(numerator, denominator))
