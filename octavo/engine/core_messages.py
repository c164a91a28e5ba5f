"""What crosses between a front end and a core in a process of its own: msgspec structs as msgpack, never pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.config import EngineArgs
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from octavo.types.messages import EngineCoreOutputs
from octavo.types.raised_error import RaisedError
from octavo.types.request import EngineCoreRequest
from octavo.utils.imports import name_of_class
from octavo.utils.plain_data import ONLY_PLAIN, encoded

# -- front end to core -------------------------------------------------------------------------------------------------


class StartCore(msgspec.Struct):
    """What a new process gets first.

    options: the fields of EngineArgs; number: of this process among those of the same rank
    rank, num_replicas: of the replica among those of the same front end
    """

    options: dict[str, Any]
    number: int
    rank: int = 0
    num_replicas: int = 1


class AddRequest(msgspec.Struct, array_like=True, tag=1):
    """Compute a request."""

    request: EngineCoreRequest


class AbortRequests(msgspec.Struct, array_like=True, tag=2):
    """End requests; unknown ids are ignored."""

    request_ids: list[str]


class CallService(msgspec.Struct, array_like=True, tag=3):
    """Call a service of the receiver by name; answered by a CallResult."""

    call_id: int
    method: str
    args: list[Any]


class StopCore(msgspec.Struct, array_like=True, tag=4):
    """Release the workers and end the process."""


CoreMessage = AddRequest | AbortRequests | CallService | StopCore

# -- core to front end: notes, which arrive even if their sender dies at once ------------------------------------------


class CoreReady(msgspec.Struct, array_like=True, tag=1):
    """The core takes requests. The limits are what it found to fit; max_kv_tokens: longest sequence the cache holds."""

    max_model_len: int
    max_kv_tokens: int
    num_blocks: int
    vocab_size: int


class StartFailed(msgspec.Struct, array_like=True, tag=7):
    """The sender could not start; its process ends."""

    error: RaisedError


class Admitted(msgspec.Struct, array_like=True, tag=3):
    """The computation of these requests begins."""

    request_ids: list[str]


class CoreFailed(msgspec.Struct, array_like=True, tag=4):
    """The core cannot go on; the process ends. num_messages: that it has sent, which may arrive later than this"""

    reason: str
    num_messages: int = 0


Note = CoreReady | StartFailed | Admitted | CoreFailed

# -- core to front end: results ----------------------------------------------------------------------------------------


class StepDone(msgspec.Struct, array_like=True, tag=1):
    """What a step brought."""

    outputs: EngineCoreOutputs


class CallResult(msgspec.Struct, array_like=True, tag=5):
    """The answer to a call: a result or an error."""

    call_id: int
    result: Any = None
    error: RaisedError | None = None


FrontMessage = StepDone | CallResult

encode = msgspec.msgpack.Encoder().encode  # raises TypeError or OverflowError for what is not plain data
decode_core_message: Callable[[bytes], CoreMessage] = msgspec.msgpack.Decoder(CoreMessage).decode
decode_front_message: Callable[[bytes], FrontMessage] = msgspec.msgpack.Decoder(FrontMessage).decode
decode_note: Callable[[bytes], Note] = msgspec.msgpack.Decoder(Note).decode
decode_start = msgspec.msgpack.Decoder(StartCore).decode


# -- options as data ---------------------------------------------------------------------------------------------------


def options_as_data(args: EngineArgs) -> dict[str, Any]:
    """Return the options as plain data; raises ConfigError for a value that cannot leave this process."""
    options = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    return {name: _option_as_data(name, value) for name, value in options.items()}


def _option_as_data(name: str, value: object) -> Any:
    text = f"{name} cannot be passed to the engine's process"
    return msgspec.msgpack.decode(encoded(_option_encoder.encode, value, ConfigError, text))


def _as_data(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, type):
        return name_of_class(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def call_message(call_id: int, method: str, args: tuple[Any, ...]) -> bytes:
    """Return a CallService's bytes; raises UnsupportedError for arguments that are not plain data."""
    text = f"{method}: arguments go to the engine's process and {ONLY_PLAIN}"
    return encoded(encode, CallService(call_id, method, list(args)), UnsupportedError, text)


def request_message(request: EngineCoreRequest) -> bytes:
    """Return an AddRequest's bytes; raises InvalidRequestError for parameters that are not plain data."""
    return encoded(encode, AddRequest(request), InvalidRequestError, REQUEST_NOT_PLAIN)


REQUEST_NOT_PLAIN = "the request cannot go to the engine's process, for its parameters are not plain data"
_option_encoder = msgspec.msgpack.Encoder(enc_hook=_as_data)
