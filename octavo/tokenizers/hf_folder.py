"""A tokenizer from a Hugging Face model folder: tokenizer.json and the small files around it.

Only data is read: a folder's own tokenizer code (`auto_map`) is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.local_files import read_json_object
from octavo.tokenizers.parts import TokenizerParts
from octavo.tokenizers.post_processing import set_bos_eos_template
from octavo.tokenizers.sentencepiece_model import load_sentencepiece_backend

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_hf_tokenizer(folder: Path) -> TokenizerParts:
    """Load the tokenizer of a model folder (or of the folder that a tokenizer.json lies in).

    Raises CheckpointError for missing or malformed files, UnsupportedError for a kind that is not built.
    """
    folder = folder.parent if folder.is_file() else folder
    config = {**_optional(folder / "special_tokens_map.json"), **_optional(folder / "tokenizer_config.json")}
    backend = _load_backend(folder)
    try:
        return _read_parts(folder, backend, config)
    except CheckpointError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # values of other types than the format has
        raise CheckpointError(
            f"{folder}: tokenizer_config.json, special_tokens_map.json or a chat template file is malformed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read_parts(folder: Path, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> TokenizerParts:
    _declare_added_tokens(backend, config)
    ids = {role: _token_id(backend, config.get(role)) for role in _ROLES}
    if not (folder / "tokenizer.json").is_file():
        # tokenizer.json holds its own template, and Transformers (5.0 on) ignores the flags beside it.
        set_bos_eos_template(
            backend,
            ids["bos_token"] if config.get("add_bos_token", True) else None,
            ids["eos_token"] if config.get("add_eos_token") else None,
        )
    eos = ids["eos_token"]
    return TokenizerParts(
        backend=backend,
        bos_token_id=ids["bos_token"],
        eos_token_id=eos,
        unk_token_id=ids["unk_token"],
        pad_token_id=ids["pad_token"],
        end_of_generation_ids=() if eos is None else (eos,),
        chat_templates=_read_chat_templates(folder, config),
        source=str(folder),
        truncation_side="left" if config.get("truncation_side") == "left" else "right",
    )


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for malformed files
            raise CheckpointError(f"{path} is not a tokenizer of the tokenizers library: {error}") from error
        if getattr(backend.model, "dropout", None):  # left over from training: a text would get other ids each time
            backend.model.dropout = None
        return backend
    model = folder / "tokenizer.model"
    if model.is_file():
        return load_sentencepiece_backend(model)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; a tokenizer is a folder with tokenizer.json or a .gguf file")
    others = sorted(path.name for path in folder.iterdir() if path.name.startswith(("vocab", "merges", "tekken")))
    raise UnsupportedError(
        f"{folder} has no tokenizer.json or tokenizer.model (found {', '.join(others) or 'no tokenizer file'}); "
        "save the tokenizer with Transformers' save_pretrained, or name another folder with tokenizer=..."
    )


def _declare_added_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add what tokenizer_config.json lists beyond tokenizer.json, and make the named tokens special."""
    present = backend.get_added_tokens_decoder()
    listed = sorted((int(token_id), entry) for token_id, entry in (config.get("added_tokens_decoder") or {}).items())
    for token_id, entry in listed:
        token = _added_token(entry)
        known = present.get(token_id)
        if known is None or known.content != token.content or known.special != token.special:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    named = [config.get(role) for role in _ROLES] + list(extra.values() if isinstance(extra, Mapping) else extra)
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [_added_token(entry, special=True) for entry in named if entry and _content(entry) not in special]
    backend.add_special_tokens(missing)


def _added_token(entry: str | Mapping[str, Any], special: bool = False) -> tokenizers.AddedToken:
    if isinstance(entry, str):
        return tokenizers.AddedToken(entry, normalized=False, special=special)
    flags = {key: bool(entry[key]) for key in ("lstrip", "rstrip", "single_word", "normalized") if key in entry}
    return tokenizers.AddedToken(_content(entry), special=special or bool(entry.get("special")), **flags)


def _content(entry: str | Mapping[str, Any]) -> str:
    return entry if isinstance(entry, str) else str(entry["content"])


def _token_id(backend: tokenizers.Tokenizer, entry: str | Mapping[str, Any] | None) -> int | None:
    token_id: int | None = None if not entry else backend.token_to_id(_content(entry))
    return token_id


def _read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return templates by name; chat_template.jinja wins over tokenizer_config.json, as in Transformers."""
    stored = config.get("chat_template")
    if stored is None:
        stored = _optional(folder / "chat_template.json").get("chat_template")
    if isinstance(stored, str):
        templates = {"default": stored}
    else:
        templates = {entry["name"]: entry["template"] for entry in stored or ()}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
