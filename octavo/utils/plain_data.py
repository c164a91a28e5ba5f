"""Messages to other processes hold plain data only; what does not is refused where it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from octavo.errors import OctavoError

Message = TypeVar("Message")

ONLY_PLAIN = "must be plain data (numbers, texts, lists, dicts), no functions or objects"


def encoded(encode: Callable[[Message], bytes], message: Message, refusal: type[OctavoError], text: str) -> bytes:
    """Return a message's bytes; raises `refusal` with the text, and the reason, for what is not plain data."""
    try:
        return encode(message)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:  # what msgspec raises
        raise refusal(f"{text}: {error}") from error
