"""What AsyncLLM offers for LoRA adapters."""

from __future__ import annotations

import asyncio

from octavo.engine.adapters import Adapters
from octavo.engine.async_mp_client import AsyncMPClient
from octavo.types.adapters import LoRARequest


class AsyncAdapters:
    """Adding and forgetting adapters. adapters: those that were named; engine_core: where they are loaded"""

    adapters: Adapters
    engine_core: AsyncMPClient

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before any request uses it; raises what is wrong with it, and does not know it then."""
        adapter = await asyncio.to_thread(self.adapters.resolve, lora_request)
        assert adapter is not None, "a request names an adapter"
        await self.engine_core.call("load_adapter", adapter.path, adapter.identity)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that use it go on. False if there was none of this number."""
        return self.adapters.forget(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the numbers of the adapters that were used or added."""
        return self.adapters.numbers()
