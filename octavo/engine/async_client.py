"""What an AsyncLLM asks of the cores, and of the front ends beside it, wherever they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from octavo.errors import EngineDeadError
from octavo.types.messages import EngineCoreOutputs
from octavo.types.request import EngineCoreRequest

# by name: what every front end of the same cores does when one of them is asked to; results are plain data
Services = dict[str, Callable[..., Awaitable[Any]]]


class AsyncCoreClient(Protocol):
    """Delivers to handlers, in the event loop that first used it."""

    services: Services

    @property
    def is_ready(self) -> bool:
        """Whether a core takes requests now."""

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why no core will come any more; None while there is one, or will be."""

    @property
    def process_ids(self) -> list[int | None]:
        """The process of each replica's present core; None between two."""

    @property
    def are_serving(self) -> list[bool]:
        """Whether each replica takes requests now."""

    def attach(self) -> bool:
        """Let the running event loop attend to the cores; return whether another did before, or none."""

    def add_request(self, request: EngineCoreRequest, rank: int | None = None) -> int | None:
        """Hand over a request; return the rank that has it, if it is known by now. While no core serves it waits.

        rank: where to, as long as that replica serves. Raises EngineDeadError when no core will come any more.
        """

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are ignored."""

    def load_vocabulary(self, packed: bytes) -> None:
        """Give the cores the tokens' bytes; what follows is sent after it. Needs no event loop."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a service of all cores, also those that are being replaced; return what their answers mean together."""

    async def call_each(self, method: str, *args: Any, serving_only: bool = False) -> list[Any]:
        """Call a service of all cores, or of those that can answer at once; return the answer of each."""

    async def call_front_ends(self, method: str, *args: Any, standing: str = "") -> list[Any]:
        """Call one of `services` in every front end, this one too; return their answers.

        standing: a front end that starts later is called too, with the last call of each such name
        """

    def shutdown(self) -> None:
        """End the cores, or leave them to the other front ends; idempotent."""


# makes a client that gives outputs to the first function, and to the second why there will be none any more
ConnectClient = Callable[[Callable[[EngineCoreOutputs], None], Callable[[EngineDeadError], None]], AsyncCoreClient]
