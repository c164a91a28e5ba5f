"""The front end's side of LoRA adapters: what a LoRARequest means, and the options."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from octavo.config import EngineArgs, OctavoConfig
from octavo.config.lora import LoRAConfig, LoRADtype
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from octavo.lora.checkpoint import adapter_identity
from octavo.types.adapters import Adapter, LoRARequest

_MAX_RANK = 512


def lora_config(args: EngineArgs) -> LoRAConfig | None:
    """Decide how adapters are kept; None without enable_lora. Raises ConfigError."""
    if not args.enable_lora:
        return None
    max_loras = 1 if args.max_loras is None else args.max_loras
    max_rank = 16 if args.max_lora_rank is None else args.max_lora_rank
    max_cpu_loras = max_loras if args.max_cpu_loras is None else args.max_cpu_loras
    if max_loras < 1:
        raise ConfigError(f"max_loras must be at least 1, got {max_loras}")
    if not 1 <= max_rank <= _MAX_RANK:
        raise ConfigError(f"max_lora_rank must be from 1 to {_MAX_RANK}, got {max_rank}")
    if max_cpu_loras < max_loras:
        raise ConfigError(f"max_cpu_loras={max_cpu_loras} is below max_loras={max_loras}; raise it or leave it out")
    # the choices are checked by EngineArgs
    return LoRAConfig(max_loras, max_rank, max_cpu_loras, cast(LoRADtype, args.lora_dtype))


def check_lora(config: OctavoConfig) -> None:
    """Raise UnsupportedError where adapters cannot be computed."""
    if config.lora is None:
        return
    if config.model.pooling is not None:
        raise UnsupportedError("enable_lora needs a model that generates: models for pooling take no adapters")


def look_at(lora_request: LoRARequest) -> Adapter:
    """Return the adapter as its folder is now; raises ModelNotFoundError."""
    identity = adapter_identity(Path(lora_request.lora_path))
    return Adapter(lora_request.lora_name, lora_request.lora_int_id, lora_request.lora_path, identity)


class Adapters:
    """Adapters by the requests that named them; each is looked at when it is first seen. May be used by threads."""

    def __init__(self, config: LoRAConfig | None) -> None:
        self._config = config
        self._known: dict[LoRARequest, Adapter] = {}

    def check_enabled(self) -> None:
        """Raise InvalidRequestError when the engine takes no adapters."""
        if self._config is None:
            raise InvalidRequestError("LoRA is off: start it with enable_lora=True (--enable-lora)", "lora_request")

    def is_known(self, lora_request: object) -> bool:
        """Say whether `resolve` reads no file."""
        return lora_request is None or (isinstance(lora_request, LoRARequest) and lora_request in self._known)

    def resolve(self, lora_request: object | None) -> Adapter | None:
        """Return the adapter; None for none. Raises InvalidRequestError or ModelNotFoundError."""
        if lora_request is None:
            return None
        if not isinstance(lora_request, LoRARequest):
            raise InvalidRequestError(
                f"lora_request must be a LoRARequest, got {type(lora_request).__name__}", "lora_request"
            )
        self.check_enabled()
        known = self._known.get(lora_request)
        if known is not None:
            return known
        adapter = look_at(lora_request)
        self.remember(adapter)
        return adapter

    def remember(self, adapter: Adapter) -> None:
        """Let requests that name the adapter mean this content from now on."""
        self._known[adapter.as_request()] = adapter  # never with load_inplace: that is looked at every time

    def forget(self, lora_int_id: int) -> bool:
        """Look at adapters of this number anew when they are seen again; say whether there were any."""
        found = [request for request in self._known if request.lora_int_id == lora_int_id]
        for request in found:
            del self._known[request]
        return bool(found)

    def numbers(self) -> set[int]:
        """Return the numbers of all known adapters."""
        return {request.lora_int_id for request in self._known}
