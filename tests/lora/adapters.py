"""Random adapters as PEFT writes them, and models that have one merged into their weights by PEFT's formula."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: Path, seed: int = 0, projections: tuple[str, ...] = PROJECTIONS, **config: Any
) -> Path:
    """Write an adapter of a saved model's linear layers. config: keys of adapter_config.json beside the defaults."""
    options = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": [*projections], **config}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in AutoModelForCausalLM.from_pretrained(model).named_modules():
        if not name.endswith(projections):
            continue
        rank = options.get("rank_pattern", {}).get(name.rsplit(".", 1)[-1], options["r"])
        out_features, in_features = module.weight.shape
        down = torch.randn(rank, in_features, generator=generator) * in_features**-0.5
        up = torch.randn(out_features, rank, generator=generator) * 0.5 * rank**-0.5
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(options))
    return folder


def rename_tensors(folder: Path, old: str, new: str) -> Path:
    """Write the adapter's tensors under other names; return its folder."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({name.replace(old, new): value for name, value in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Save the model with W + scale * B A in place of W."""
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    merged = AutoModelForCausalLM.from_pretrained(model)
    for name, module in merged.named_modules():
        down = tensors.get(f"base_model.model.{name}.lora_A.weight")
        if down is None:
            continue
        rank, kind = len(down), name.rsplit(".", 1)[-1]
        alpha = config.get("alpha_pattern", {}).get(kind, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        with torch.no_grad():
            module.weight += scale * tensors[f"base_model.model.{name}.lora_B.weight"] @ down
    merged.save_pretrained(folder)
    for file in model.iterdir():
        if file.name.startswith(("tokenizer", "special", "chat_template")):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder
