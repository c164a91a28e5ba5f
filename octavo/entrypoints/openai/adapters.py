"""LoRA adapters under the names that clients use as models: those of --lora-modules, and loading at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo import envs
from octavo.entrypoints.openai.errors import HTTPError
from octavo.entrypoints.openai.peers import Peers
from octavo.entrypoints.openai.protocol.services import LoadAdapterRequest, ServiceDone, UnloadAdapterRequest
from octavo.errors import CheckpointError, ConfigError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from octavo.types.adapters import LoRARequest

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.openai.state import RequestContext, ServerState


def parse_lora_modules(values: Sequence[str]) -> dict[str, str]:
    """Return path by name of `name=path`, or of a JSON object with name and path; raises ConfigError."""
    modules: dict[str, str] = {}
    for value in values:
        name, _, path = value.partition("=")
        if value.lstrip().startswith("{"):
            try:
                entry = msgspec.json.decode(value, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise ConfigError(f"lora_modules: {value!r} is not a JSON object ({error})") from None
            name, path = entry.get("name", ""), entry.get("path", "")
        if not (isinstance(name, str) and isinstance(path, str) and name and path):
            raise ConfigError(f'lora_modules takes name=path or {{"name": ..., "path": ...}}, got {value!r}')
        if name in modules:
            raise ConfigError(f"lora_modules has the name {name!r} twice")
        modules[name] = path
    return modules


class ServedAdapters:
    """Adapters by name, in all server processes of the engine. base_names: the model's own, which are taken"""

    def __init__(self, engine: AsyncLLM, peers: Peers, base_names: Sequence[str]) -> None:
        self._engine = engine
        self._peers = peers
        self._base_names = base_names
        self._requests: dict[str, LoRARequest] = {}
        self._last_number = 0
        self._changing = asyncio.Lock()
        peers.offer(name_adapter=self._name, unname_adapter=self._unname)

    @property
    def requests(self) -> Mapping[str, LoRARequest]:
        """What each name stands for, in the order in which they came."""
        return self._requests

    async def load_at_start(self, modules: Mapping[str, str]) -> None:
        """Load what --lora-modules names; raises ConfigError."""
        for name, path in modules.items():
            try:
                await self.load(name, path, in_place=False)
            except (HTTPError, InvalidRequestError, CheckpointError, UnsupportedError, ModelNotFoundError) as error:
                text = error.message if isinstance(error, HTTPError) else error
                raise ConfigError(f"--lora-modules {name}={path}: {text}") from error

    async def load(self, name: str, path: str, in_place: bool) -> None:
        """Make an adapter known; in_place: also under a known name. Requests that run keep what they began with."""
        async with self._changing:
            if name in self._base_names:
                raise HTTPError(400, f"{name!r} is the model's own name; choose another", parameter="lora_name")
            known = self._requests.get(name)
            if known is not None and not in_place:
                raise HTTPError(
                    400,
                    f"the adapter {name!r} is loaded already; unload it first, or set load_inplace",
                    parameter="lora_name",
                )
            number = self._last_number + 1 if known is None else known.lora_int_id
            await self._engine.add_lora(LoRARequest(name, number, path, load_inplace=True))
            await self._tell_all("name_adapter", name, number, path)

    async def unload(self, name: str) -> None:
        """Forget a name; requests that run go on. Raises HTTPError 404."""
        async with self._changing:
            known = self._requests.get(name)
            if known is None:
                raise HTTPError(404, f"there is no adapter {name!r}", parameter="lora_name")
            await self._tell_all("unname_adapter", name)
            await self._engine.remove_lora(known.lora_int_id)

    async def _tell_all(self, service: str, name: str, *facts: Any) -> None:
        await self._peers.call(service, name, *facts, standing=f"adapter name {name}")

    async def _name(self, name: str, number: int, path: str) -> None:
        self._requests[name] = LoRARequest(name, number, path)
        self._last_number = max(self._last_number, number)

    async def _unname(self, name: str) -> None:
        self._requests.pop(name, None)


async def load_adapter(server: ServerState, request: LoadAdapterRequest, context: RequestContext) -> ServiceDone:
    """Load an adapter from a folder of the server's machine."""
    _check_allowed()
    try:
        await server.adapters.load(request.lora_name, request.lora_path, request.load_inplace)
    except ModelNotFoundError as error:
        raise HTTPError(404, str(error), parameter="lora_path") from None
    except CheckpointError as error:
        raise HTTPError(400, str(error), parameter="lora_path") from None
    return ServiceDone(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload_adapter(server: ServerState, request: UnloadAdapterRequest, context: RequestContext) -> ServiceDone:
    """Forget an adapter's name."""
    _check_allowed()
    await server.adapters.unload(request.lora_name)
    return ServiceDone(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _check_allowed() -> None:
    if not envs.allow_runtime_lora_updating():
        raise HTTPError(
            404, "adapters cannot be loaded at run time: start the server with OCTAVO_ALLOW_RUNTIME_LORA_UPDATING=1"
        )
