"""What crosses between the hub and its front ends: msgspec structs as msgpack, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.engine.core_messages import AbortRequests, CallResult, CoreReady, StepDone
from octavo.types.raised_error import RaisedError
from octavo.types.request import EngineCoreRequest

# -- front end to hub --------------------------------------------------------------------------------------------------


class PlaceRequest(msgspec.Struct, array_like=True, tag=1):
    """Compute a request; rank: at this replica, as long as it serves."""

    request: EngineCoreRequest
    rank: int | None = None


class CallCores(msgspec.Struct, array_like=True, tag=3):
    """Call a service of the cores (serving_only: those that can answer at once); answered by a CallResult."""

    call_id: int
    method: str
    args: list[Any]
    serving_only: bool = False


class CallFrontEnds(msgspec.Struct, array_like=True, tag=4):
    """Call a service of all front ends; answered by a CallResult. standing: see `CoreClient.call_front_ends`."""

    call_id: int
    method: str
    args: list[Any]
    standing: str = ""


class FrontEndReply(msgspec.Struct, array_like=True, tag=5):
    """The answer to a FrontEndCall: a result or an error."""

    number: int
    result: Any = None
    error: RaisedError | None = None


class FrontEndReady(msgspec.Struct, array_like=True, tag=6):
    """The front end takes requests."""


class FrontEndFailed(msgspec.Struct, array_like=True, tag=7):
    """The front end could not start; its process ends."""

    error: RaisedError


ToHub = PlaceRequest | AbortRequests | CallCores | CallFrontEnds | FrontEndReply | FrontEndReady | FrontEndFailed

# -- hub to front end --------------------------------------------------------------------------------------------------


class FrontEndCall(msgspec.Struct, array_like=True, tag=3):
    """Call a service of the front end; answered by a FrontEndReply. number 0: nobody waits for that"""

    number: int
    method: str
    args: list[Any]


class EngineState(msgspec.Struct, array_like=True, tag=4):
    """The cores as they are now, by rank; dead_error: why none will come any more."""

    process_ids: list[int | None]
    are_serving: list[bool]
    is_ready: bool
    dead_error: str | None = None


class Welcome(msgspec.Struct, array_like=True, tag=5):
    """The first message: the cores are ready. standing: what to do before anything else"""

    limits: CoreReady
    state: EngineState
    standing: list[FrontEndCall]


FromHub = StepDone | CallResult | FrontEndCall | EngineState | Welcome

to_hub_decoder = msgspec.msgpack.Decoder(ToHub)
from_hub_decoder = msgspec.msgpack.Decoder(FromHub)
encode = msgspec.msgpack.Encoder().encode
