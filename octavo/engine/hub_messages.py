"""What crosses between the hub and its front ends: msgspec structs as msgpack, never pickle."""

from __future__ import annotations

import msgspec

from octavo.engine.core_messages import (
    AbortRequests,
    AddRequest,
    CallResult,
    CallService,
    CoreReady,
    StartFailed,
    StepDone,
)

# -- front end to hub --------------------------------------------------------------------------------------------------


class PlaceRequest(AddRequest, array_like=True, tag=1):
    """Compute a request; rank: at this replica, as long as it serves."""

    rank: int | None = None


class CallCores(CallService, array_like=True, tag=3):
    """Call a service of the cores; serving_only: of those that can answer at once."""

    serving_only: bool = False


class CallFrontEnds(CallService, array_like=True, tag=4):
    """Call a service of all front ends. standing: see `AsyncCoreClient.call_front_ends`"""

    standing: str = ""


class FrontEndReady(msgspec.Struct, array_like=True, tag=6):
    """The front end takes requests."""


ToHub = PlaceRequest | AbortRequests | CallCores | CallFrontEnds | CallResult | FrontEndReady | StartFailed

# -- hub to front end --------------------------------------------------------------------------------------------------


class EngineState(msgspec.Struct, array_like=True, tag=4):
    """The cores as they are now, by rank; dead_error: why none will come any more."""

    process_ids: list[int | None]
    are_serving: list[bool]
    is_ready: bool
    dead_error: str | None = None


class Welcome(msgspec.Struct, array_like=True, tag=6):
    """The first message: the cores are ready. standing: what to do before anything else; nobody waits for answers"""

    limits: CoreReady
    state: EngineState
    standing: list[CallService]


FromHub = StepDone | CallResult | CallService | EngineState | Welcome

decode_to_hub = msgspec.msgpack.Decoder(ToHub).decode
decode_from_hub = msgspec.msgpack.Decoder(FromHub).decode
encode = msgspec.msgpack.Encoder().encode
