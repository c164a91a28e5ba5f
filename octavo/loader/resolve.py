"""Model names -> opened checkpoints: a local folder, a .gguf file, a name of the catalog, a repository of the hub.

Code in a model's folder never runs: `auto_map` and Python files in it are ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from octavo.config.configs import LoadConfig
from octavo.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedError
from octavo.loader import catalog, hub
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.files import GGUFChoice, choose_files
from octavo.loader.gguf_config import gguf_config, gguf_generation_config, gguf_pooling
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.hf_config import HFConfig
from octavo.loader.local_files import present_names, read_json_object
from octavo.loader.sentence_transformers import SentenceTransformersFacts, read_sentence_transformers
from octavo.log import get_logger
from octavo.utils.names import closest_names

logger = get_logger(__name__)


def open_checkpoint(
    model: str,
    load_config: LoadConfig,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | None = None,
) -> Checkpoint:
    """Find a model by name, fetching it if need be, and read its config; no tensor is read.

    model: a folder (also `folder:QUANT`), a .gguf file, a catalog name, `repo/id` or `repo/id:QUANT`, in that order
    revision, download_dir, hf_token: for the Hugging Face hub

    Raises ModelNotFoundError saying what was tried, CheckpointError for corrupt or contradictory files,
    UnsupportedError for a format or GGUF architecture that is not supported.
    """
    if not model.strip():
        raise ModelNotFoundError(f"a model has a name or a path, got {model!r}")
    with_weights = load_config.load_format != "dummy"
    try:
        path = _locate(model, _HubOptions(revision, download_dir, hf_token), with_weights)
        checkpoint = _open_folder(model, path) if path.is_dir() else _open_gguf(model, path)
    except PermissionError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}") from error
    wanted = load_config.load_format
    if wanted in ("safetensors", "gguf") and wanted != checkpoint.format:
        raise ConfigError(f"load_format={wanted!r}, but {model!r} is in the format {checkpoint.format!r} ({path})")
    return checkpoint


@dataclass(frozen=True)
class _HubOptions:
    revision: str | None
    download_dir: str | None
    token: str | None


def _locate(model: str, options: _HubOptions, with_weights: bool) -> Path:
    """Return the folder with config.json, or the .gguf file, that a name stands for."""
    local = _locate_local(model, with_weights)
    if local is not None:
        return local
    if catalog.find(model) is not None:
        return catalog.pull(model)
    tried = [
        f"a local folder or .gguf file ({_local_path(model).absolute()}{_access(model)})",
        f"the catalog ({', '.join(entry.name for entry in catalog.list_models())})",
    ]
    hub_name = hub.parse_hub_name(model)
    if hub_name is None or model.lower().endswith(".gguf"):
        tried.append("no repository of the Hugging Face hub, whose names have the form owner/name or owner/name:QUANT")
        raise ModelNotFoundError(f"model {model!r} was not found; tried: {'; '.join(tried)}{_closest(model)}")
    repo_id, quantization = hub_name
    request = hub.HubModel(repo_id, quantization, options.revision, options.download_dir, options.token)
    try:
        return hub.fetch(request, with_weights)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"model {model!r} was not found; tried: {'; '.join(tried)}; {error}{_closest(model)}"
        ) from error


def _access(model: str) -> str:
    """Return why it cannot be known whether there is such a path."""
    try:
        _local_path(model).stat()
    except PermissionError as error:
        return f": {error.strerror}"
    except (OSError, ValueError):  # there is none, or can be none
        pass
    return ""


def _closest(model: str) -> str:
    """Return a hint at what an address means, or at a name of the catalog, or at what lies beside."""
    if hint := _meant(model):
        return hint
    names = [name for entry in catalog.list_models() for name in (entry.name, *entry.aliases)]
    parent = _local_path(model).parent
    siblings = parent.glob("*") if os.path.isdir(parent) else ()
    beside = [str(path) for path in siblings if path.is_dir() or path.suffix.lower() == ".gguf"]
    return closest_names(model, (*names, *beside))


def _meant(name: str) -> str:
    meant = hub.name_meant(name)
    return f"; did you mean {meant}?" if meant else ""


def _locate_local(model: str, with_weights: bool) -> Path | None:
    path = _local_path(model)
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise UnsupportedError(f"{path} is a file but not a .gguf file; name the folder that holds config.json")
        return path
    if os.path.isdir(path):
        return _choose_local(path, None, with_weights)
    folder, separator, quantization = model.rpartition(":")
    if separator and folder and os.path.isdir(_local_path(folder)):
        return _choose_local(_local_path(folder), quantization, with_weights)
    return None


def _local_path(name: str) -> Path:
    """Return the path that a name would be; like `os.path.isfile`, and unlike Path, for any text without an error."""
    return Path(os.path.expanduser(name))


def _choose_local(folder: Path, quantization: str | None, with_weights: bool) -> Path:
    try:
        choice = choose_files(present_names(folder, folder.iterdir()), str(folder), quantization, with_weights)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{error}{_meant(str(folder))}") from None
    if not isinstance(choice, GGUFChoice):
        return folder
    if choice.others and quantization is None:
        logger.info("%s: taking %s; also there: %s", folder, choice.name, ", ".join(choice.others))
    return folder / choice.name


def _open_folder(name: str, folder: Path) -> Checkpoint:
    config = HFConfig(read_json_object(folder / "config.json"), str(folder / "config.json"))
    generation_path = folder / "generation_config.json"
    generation_config = read_json_object(generation_path) if generation_path.is_file() else {}
    facts = read_sentence_transformers(folder)
    return Checkpoint(name, folder, "safetensors", config, generation_config, sentence_transformers=facts)


def _open_gguf(name: str, path: Path) -> Checkpoint:
    file = GGUFFile(path)
    pooling = gguf_pooling(file)
    files = None if pooling is None else SentenceTransformersFacts(pooling, normalize=True)
    return Checkpoint(name, path, "gguf", gguf_config(file), gguf_generation_config(file), file, files)
