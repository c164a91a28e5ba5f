"""LoRA adapters as requests name them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from octavo.errors import InvalidRequestError


@dataclass(frozen=True)
class LoRARequest:
    """An adapter to compute a request with, under vLLM's names.

    lora_path: folder with adapter_config.json and adapter_model.safetensors, as PEFT writes it
    load_inplace: read the folder again, although this request has been seen before

    Name, id and path together say which adapter is meant; it is read when first seen. Raises InvalidRequestError.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False

    def __post_init__(self) -> None:
        for name in ("lora_name", "lora_path"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidRequestError(f"{name} must be non-empty text, got {value!r}", name)
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise InvalidRequestError(f"lora_int_id must be an integer of at least 1, got {self.lora_int_id!r}")


class Adapter(msgspec.Struct, array_like=True, frozen=True):
    """An adapter as the engine knows it. identity: of its content, whatever its name: see `octavo.lora.checkpoint`."""

    name: str
    number: int
    path: str
    identity: str

    def as_request(self) -> LoRARequest:
        """Return what a user calls it."""
        return LoRARequest(self.name, self.number, self.path)
