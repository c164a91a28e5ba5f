"""What AsyncLLM offers for LoRA adapters, as functions of the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from octavo.engine.adapters import look_at
from octavo.types.adapters import Adapter, LoRARequest

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM


async def add_lora(engine: AsyncLLM, lora_request: LoRARequest) -> bool:
    """Load an adapter, as its folder is now, before any request uses it.

    Raises what is wrong with it; what was known under its name stays as it is then.
    """
    engine.adapters.check_enabled()
    adapter = await asyncio.to_thread(look_at, lora_request)
    await engine.engine_core.call("load_adapter", adapter.path, adapter.identity)
    await engine.engine_core.call_front_ends("remember_adapter", adapter, standing=f"adapter {adapter.number}")
    return True


async def remove_lora(engine: AsyncLLM, lora_id: int) -> bool:
    """Forget an adapter; requests that use it go on. False if there was none of this number."""
    return any(await engine.engine_core.call_front_ends("forget_adapter", lora_id, standing=f"adapter {lora_id}"))


async def list_loras(engine: AsyncLLM) -> set[int]:
    """Return the numbers of the adapters that were used or added."""
    return engine.adapters.numbers()


def serve_adapters(engine: AsyncLLM) -> None:
    """Let every front end know the adapters that one of them was told of."""

    async def remember(adapter: object) -> None:
        engine.adapters.remember(msgspec.convert(adapter, Adapter))

    async def forget(lora_id: int) -> bool:
        return engine.adapters.forget(lora_id)

    engine.engine_core.services.update(remember_adapter=remember, forget_adapter=forget)
