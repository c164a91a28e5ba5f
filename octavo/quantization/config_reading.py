"""A checkpoint's quantization_config -> how its weights are stored. Whatever is not understood is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.quantization.layouts import AwqLayout, GptqLayout, IntLayout, Layout, PackedIntLayout

MXFP4 = "mxfp4"


def read_layout(config: HFConfig) -> Layout | None:
    """Return how quantised modules are stored, or None when none is; MXFP4 is of no modules but of stacked experts.

    Raises UnsupportedError for a method or an option that is not supported, CheckpointError for a malformed section.
    """
    section, method = _section(config), method_of(config)
    if section is None or method is None or method == MXFP4:
        return None
    reader = _READERS.get(method)
    if reader is None:
        raise UnsupportedError(
            f"{section.source}: quant_method={method!r} is not supported; supported are {', '.join(_READERS)}, {MXFP4} "
            "and GGUF files; or use the unquantised model with quantization='int4' or 'int8'"
        )
    return reader(section)


def method_of(config: HFConfig) -> str | None:
    """Return the quantisation's name, or None."""
    section = _section(config)
    if section is None:
        return None
    return section.str("quant_method", "compressed-tensors" if "config_groups" in section else None)


def _section(config: HFConfig) -> HFConfig | None:
    return config.section("quantization_config") or config.section("compression_config")


def _read_gptq(section: HFConfig) -> Layout:
    if section.values.get("dynamic"):
        raise UnsupportedError(f"{section.source}: rules of their own for some modules (dynamic) are not supported")
    checkpoint_format = section.str("checkpoint_format", "gptq")
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise UnsupportedError(f"{section.source}: checkpoint_format={checkpoint_format!r} must be gptq or gptq_v2")
    return GptqLayout(_bits(section, "bits"), _group_size(section), 1 if checkpoint_format == "gptq" else 0)


def _read_awq(section: HFConfig) -> Layout:
    if _bits(section, "bits" if "bits" in section else "w_bit") != 4:
        raise UnsupportedError(f"{section.source}: AWQ with 8 bits is not supported")
    version = section.str("version", "gemm").lower()
    if version != "gemm":
        raise UnsupportedError(f"{section.source}: AWQ version {version!r} must be 'gemm'")
    return AwqLayout(_group_size(section, "group_size" if "group_size" in section else "q_group_size"))


def _read_compressed_tensors(section: HFConfig) -> Layout:
    groups = section.section("config_groups")
    schemes = [HFConfig(group, section.source) for group in groups.values.values()] if groups else []
    weights = [scheme.section("weights") for scheme in schemes]
    first = weights[0] if weights else None
    if first is None or any(other is None or other.values != first.values for other in weights):
        raise UnsupportedError(f"{section.source}: config_groups must give all modules the same 'weights'")
    if first.str("type", "int") != "int":
        raise UnsupportedError(f"{first.source}: weights of type {first.str('type')!r} are not supported, only 'int'")
    if first.values.get("actorder") not in (None, False, "static", "weight"):
        raise UnsupportedError(f"{first.source}: actorder={first.values['actorder']!r} is not supported")
    strategy = first.str("strategy", "channel")
    if strategy not in ("group", "channel"):
        raise UnsupportedError(f"{first.source}: strategy={strategy!r} must be 'group' or 'channel'")
    group_size = _group_size(first) if strategy == "group" else -1
    bits, symmetric = _bits(first, "num_bits"), first.bool("symmetric", True)
    layout = first.str("format", section.str("format", "int-quantized")) if "format" in first else section.str("format")
    if layout == "pack-quantized":
        return PackedIntLayout(bits, group_size, symmetric)
    if layout == "int-quantized" and bits == 8:
        return IntLayout(group_size, symmetric)
    raise UnsupportedError(f"{section.source}: format={layout!r} with {bits} bits is not supported")


def _bits(section: HFConfig, key: str) -> int:
    bits = section.int(key)
    if bits not in (4, 8):
        raise UnsupportedError(f"{section.source}: {key}={bits} is not supported, only 4 and 8")
    return bits


def _group_size(section: HFConfig, key: str = "group_size") -> int:
    size = section.int(key)
    if size != -1 and size < 1:
        raise CheckpointError(f"{section.source}: {key} must be positive or -1, got {size}")
    return size


_READERS: Mapping[str, Callable[[HFConfig], Layout]] = {
    "gptq": _read_gptq,
    "awq": _read_awq,
    "compressed-tensors": _read_compressed_tensors,
}
