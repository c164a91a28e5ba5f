"""What crosses the network between a front end and the hosts of its replicas: msgspec structs as msgpack, never pickle.

First each side shows that it has the key (HMAC-SHA256 of the other's random number); a host also says what it would
compute. Then a connection belongs to one replica, and what its process says and is told goes through it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

import msgspec

# -- greeting ----------------------------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, array_like=True):
    """The front end's first word."""

    number: bytes


class Hello(msgspec.Struct, array_like=True):
    """The host's answer. facts: what must be the same on both sides, by name"""

    rank: int
    facts: Mapping[str, str]
    number: bytes
    proof: bytes


class Greeting(msgspec.Struct, array_like=True):
    """The front end's answer: why the host is refused, or its own proof."""

    refusal: str | None
    proof: bytes = b""


def proof(key: str, side: str, number: bytes) -> bytes:
    """Return what only a side that has the key can answer to a number."""
    return hmac.digest(key.encode(), side.encode() + number, "sha256")


# -- front end to host -------------------------------------------------------------------------------------------------


class StartHosted(msgspec.Struct, array_like=True, tag=1):
    """Start the replica's process number `number`, with these of the host's own options replaced."""

    number: int
    limits: Mapping[str, int]


class ConnectHosted(msgspec.Struct, array_like=True, tag=2):
    """The process is ready: open the way to it."""


class ToHosted(msgspec.Struct, array_like=True, tag=3):
    """A message to the process."""

    data: bytes


class EndHosted(msgspec.Struct, array_like=True, tag=4):
    """End the process; asks_first: let it end by itself for a short while."""

    asks_first: bool


class Farewell(msgspec.Struct, array_like=True, tag=5):
    """The front end ends, and so may the host. fault: what ends this host alone"""

    fault: str | None = None


ToHost = StartHosted | ConnectHosted | ToHosted | EndHosted | Farewell

# -- host to front end -------------------------------------------------------------------------------------------------


class HostedStarted(msgspec.Struct, array_like=True, tag=1):
    """What follows is of process number `number`."""

    number: int
    process_id: int


class HostedMessage(msgspec.Struct, array_like=True, tag=2):
    """A message of the process."""

    data: bytes


class HostedNote(msgspec.Struct, array_like=True, tag=3):
    """A note of the process."""

    data: bytes


class HostedEnded(msgspec.Struct, array_like=True, tag=4):
    """The process has ended."""

    status: int


FromHost = HostedStarted | HostedMessage | HostedNote | HostedEnded

# the options in which all replicas follow the first; a host takes no other from the front end
SHARED_LIMITS = ("max_model_len", "num_gpu_blocks_override")

encode = msgspec.msgpack.Encoder().encode
decode_to_host = msgspec.msgpack.Decoder(ToHost).decode
decode_from_host = msgspec.msgpack.Decoder(FromHost).decode
