"""Which files of a model's folder or repository matter: a pure choice over file names, local or remote."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from octavo.errors import ModelNotFoundError, UnsupportedError
from octavo.loader.gguf_file import SPLIT_NAME, part_name
from octavo.loader.safetensors_weights import INDEX_FILE, SINGLE_FILE
from octavo.loader.sentence_transformers import MODULES_FILE, SETTINGS_FILES

# Without a wish, the first of these that is there: small and good first, then larger, then full precision.
_PREFERRED_QUANTIZATIONS = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_M", "BF16",
    "F16", "F32",
)  # fmt: skip
_CONFIG_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")  # of sentence-transformers' modules


@dataclass(frozen=True)
class SafetensorsFiles:
    """A model as Hugging Face folders hold it: the names to fetch or read."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class GGUFChoice:
    """A model in a .gguf file, or in several of which this is the first, and what else was there to choose from."""

    name: str
    others: tuple[str, ...]
    more_parts: tuple[str, ...] = ()


def choose_files(
    names: Collection[str], where: str, quantization: str | None = None, with_weights: bool = True
) -> SafetensorsFiles | GGUFChoice:
    """Choose among a folder's file names (with forward slashes): safetensors first, else one .gguf file.

    quantization: takes the .gguf file whose name carries it, in any case
    with_weights: False when only config and tokenizer matter (dummy weights)

    Raises ModelNotFoundError listing what is there when nothing fits, UnsupportedError for pickled weights only.
    """
    gguf_names = sorted(name for name in names if _is_gguf_model(name))
    if quantization is not None:
        return _choose_quantization(gguf_names, quantization, where)
    if "config.json" in names and (not with_weights or any(_is_top_level_safetensors(name) for name in names)):
        wanted = [name for name in (*_CONFIG_FILES, *_TOKENIZER_FILES, *SETTINGS_FILES) if name in names]
        if MODULES_FILE in names:
            wanted += sorted(name for name in names if _MODULE_FILE.fullmatch(name))
        return SafetensorsFiles((*wanted, *(_safetensors(names) if with_weights else ())))
    if gguf_names:
        return _choose_default(gguf_names, where)
    _refuse(names, where)


def _choose_quantization(gguf_names: list[str], quantization: str, where: str) -> GGUFChoice:
    matching = [name for name in gguf_names if _carries(name, quantization)]
    if not matching:
        there = ", ".join(gguf_names) or "no .gguf file at all"
        raise ModelNotFoundError(f"{where} has no .gguf file with the quantisation {quantization!r}; it has: {there}")
    return _whole(min(matching, key=lambda name: (len(name), name)), gguf_names, where)


def _choose_default(gguf_names: list[str], where: str) -> GGUFChoice:
    for quantization in _PREFERRED_QUANTIZATIONS:
        matching = [name for name in gguf_names if _carries(name, quantization)]
        if matching:
            return _whole(min(matching, key=lambda name: (len(name), name)), gguf_names, where)
    choice = _whole(gguf_names[0], gguf_names, where)
    if choice.others:
        raise ModelNotFoundError(
            f"{where} has several .gguf files and none with a well-known quantisation; name one: "
            f"{', '.join(gguf_names)}"
        )
    return choice


def _whole(name: str, gguf_names: list[str], where: str) -> GGUFChoice:
    """Return the model that a file belongs to; raises ModelNotFoundError where parts of a split one are missing."""
    split = SPLIT_NAME.fullmatch(name)
    parts = [name]
    if split is not None:
        count = int(split["count"])
        parts = [part_name(split["stem"], number, count) for number in range(1, count + 1)]
        missing = [part for part in parts if part not in gguf_names]
        if missing:
            raise ModelNotFoundError(
                f"{where}: of the split model {split['stem']} there is no {', '.join(missing[:5])}"
            )
    return GGUFChoice(parts[0], tuple(other for other in gguf_names if other not in parts), tuple(parts[1:]))


def _refuse(names: Collection[str], where: str) -> NoReturn:
    pickled = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES))
    if pickled:
        raise UnsupportedError(
            f"{where} has its weights in {pickled[0]}, a pickle that could run code when it is read; only safetensors "
            "and GGUF are supported: convert the weights, or choose a repository that has them"
        )
    there = ", ".join(sorted(names)[:20]) or "no files"
    raise ModelNotFoundError(
        f"{where} is not a model: expected config.json with *.safetensors files, or a .gguf file; it has: {there}"
    )


def _safetensors(names: Collection[str]) -> list[str]:
    """Return the weight files, without second copies in another layout (such as consolidated.safetensors)."""
    if INDEX_FILE in names:
        return [INDEX_FILE, *sorted(name for name in names if _SHARD.fullmatch(name))]
    if SINGLE_FILE in names:
        return [SINGLE_FILE]
    return sorted(name for name in names if _is_top_level_safetensors(name))


def _is_top_level_safetensors(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def _is_gguf_model(name: str) -> bool:
    """Tell whether a file is a .gguf file and not an image projector or an importance matrix that goes with one."""
    lowered = PurePosixPath(name).name.lower()
    return lowered.endswith(".gguf") and "mmproj" not in lowered and "imatrix" not in lowered


def _carries(name: str, quantization: str) -> bool:
    """Tell whether a file's name carries a quantisation as a whole: Q4_K_M has neither Q4_K nor K_M."""
    pattern = rf"(?<![A-Za-z0-9])(?<!Q\d_)(?<!_K_){re.escape(quantization)}(?![A-Za-z0-9_])"
    return re.search(pattern, PurePosixPath(name).stem, re.IGNORECASE) is not None
