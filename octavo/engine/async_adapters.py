"""What AsyncLLM offers for LoRA adapters."""

from __future__ import annotations

import asyncio

from octavo.engine.adapters import Adapters, look_at
from octavo.engine.async_mp_client import AsyncMPClient
from octavo.types.adapters import LoRARequest


class AsyncAdapters:
    """Adding and forgetting adapters. adapters: those that were named; engine_core: where they are loaded"""

    adapters: Adapters
    engine_core: AsyncMPClient

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter, as its folder is now, before any request uses it.

        Raises what is wrong with it; what was known under its name stays as it is then.
        """
        self.adapters.check_enabled()
        adapter = await asyncio.to_thread(look_at, lora_request)
        await self.engine_core.call("load_adapter", adapter.path, adapter.identity)
        self.adapters.remember(adapter)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that use it go on. False if there was none of this number."""
        return self.adapters.forget(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that were used or added."""
        return self.adapters.numbers()
