"""What the files of the sentence-transformers library say about a model folder: pooling, layers on top, prompts.

Source: the library's `modules.json` (a list of modules, each with a class and a folder) and what its modules save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.hf_config import HFConfig
from octavo.loader.local_files import read_json_array, read_json_object

MODULES_FILE = "modules.json"
# Small files that belong to a folder with MODULES_FILE, beside what is in the folders of its modules.
SETTINGS_FILES = (MODULES_FILE, "sentence_bert_config.json", "config_sentence_transformers.json")


@dataclass(frozen=True)
class DenseModule:
    """A linear layer on top. activation: the class of PyTorch's, such as "Tanh"; folder: holds the weights"""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class SentenceTransformersFacts:
    """One folder. pooling: as PoolerConfig names it, None where every token keeps its vector (ColBERT).

    max_seq_length: longer texts are cut; prompts: texts put before an input, by name
    pools_prompt: whether the tokens of a prompt count in the pooling
    """

    pooling: str | None
    normalize: bool
    dense: tuple[DenseModule, ...] = ()
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompt: bool = True


def read_sentence_transformers(folder: Path) -> SentenceTransformersFacts | None:
    """Return what the folder's files say; None without modules.json.

    Raises CheckpointError for malformed files, UnsupportedError for modules and poolings that are not built.
    """
    if not (folder / MODULES_FILE).is_file():
        return None
    pooling: str | None = None
    normalize, pools_prompt = False, True
    dense: list[DenseModule] = []
    for name, path in _modules(folder):
        if name == "Pooling":
            config = _config(path)
            pooling, pools_prompt = _pooling(config), config.bool("include_prompt", True)
        elif name == "Dense":
            dense.append(_dense(path))
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise UnsupportedError(
                f"{folder / MODULES_FILE}: module {name!r} is not supported; supported: Transformer, Pooling, Dense, "
                "Normalize"
            )
    transformer = _optional(folder / "sentence_bert_config.json")
    settings = _optional(folder / "config_sentence_transformers.json")
    prompts = settings.section("prompts")
    return SentenceTransformersFacts(
        pooling=pooling,
        normalize=normalize or pooling is None,
        dense=tuple(dense),
        max_seq_length=transformer.int("max_seq_length") if "max_seq_length" in transformer else None,
        do_lower_case=transformer.bool("do_lower_case", False),
        prompts={} if prompts is None else {key: prompts.str(key) for key in prompts.values},
        default_prompt_name=settings.str("default_prompt_name", "") or None,
        pools_prompt=pools_prompt,
    )


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return each module's class, without its package, and its folder."""
    modules = []
    for entry in read_json_array(folder / MODULES_FILE):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise CheckpointError(f"{folder / MODULES_FILE}: a module needs 'type' and 'path', got {str(entry)[:200]}")
        path = (folder / entry["path"]).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise CheckpointError(f"{folder / MODULES_FILE} names a folder outside its own: {entry['path'][:200]!r}")
        modules.append((entry["type"].rpartition(".")[2], path))
    return modules


def _pooling(config: HFConfig) -> str:
    modes = [mode for key, mode in _POOLING_MODES.items() if config.bool(key, False)]
    if "pooling_mode" in config:
        modes = [_POOLING_NAMES.get(config.str("pooling_mode"), config.str("pooling_mode"))]
    unknown = sorted(key for key in config.values if key.startswith("pooling_mode_") and key not in _POOLING_MODES)
    if len(modes) != 1 or unknown or modes[0] not in _POOLING_MODES.values():
        raise UnsupportedError(
            f"{config.source}: exactly one pooling mode of {', '.join(_POOLING_NAMES)} is supported, got "
            f"{', '.join([*modes, *unknown]) or 'none'}"
        )
    return modes[0]


def _dense(path: Path) -> DenseModule:
    config = _config(path)
    return DenseModule(
        path,
        config.int("in_features"),
        config.int("out_features"),
        config.bool("bias", True),
        config.str("activation_function", "torch.nn.modules.linear.Identity").rpartition(".")[2],
    )


def _config(path: Path) -> HFConfig:
    return HFConfig(read_json_object(path / "config.json"), str(path / "config.json"))


def _optional(path: Path) -> HFConfig:
    values: dict[str, Any] = read_json_object(path) if path.is_file() else {}
    return HFConfig(values, str(path))


_POOLING_MODES = {
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_max_tokens": "MAX",
    "pooling_mode_mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "pooling_mode_weightedmean_tokens": "WEIGHTED_MEAN",
    "pooling_mode_lasttoken": "LAST",
}
_POOLING_NAMES = {
    "cls": "CLS",
    "mean": "MEAN",
    "max": "MAX",
    "mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "weightedmean": "WEIGHTED_MEAN",
    "lasttoken": "LAST",
}
