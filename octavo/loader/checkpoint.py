"""One model on disk, opened but not read: its format, metadata and where weights and tokenizer are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from octavo.loader.gguf_file import GGUFFile
from octavo.loader.hf_config import HFConfig
from octavo.loader.sentence_transformers import SentenceTransformersFacts


@dataclass(frozen=True)
class Checkpoint:
    """A resolved model.

    path: the folder (safetensors) or the .gguf file
    config: config.json, or its equivalent derived from GGUF metadata (`architectures`, `model_type` and all sizes)
    generation_config: generation_config.json as it is, or what GGUF metadata says (eos_token_id list, ...);
        may be empty
    gguf: the parsed file when format is "gguf" (weights, vocabulary, chat template), else None
    sentence_transformers: of a folder made by that library, else None
    """

    name: str
    path: Path
    format: Literal["safetensors", "gguf"]
    config: HFConfig
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    gguf: GGUFFile | None = None
    sentence_transformers: SentenceTransformersFacts | None = None
