"""Models of the Hugging Face hub, from its local cache or the network, through the huggingface_hub package.

HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN work as that package documents them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ModelNotFoundError
from octavo.loader.files import GGUFChoice, choose_files
from octavo.loader.local_files import present_names
from octavo.log import get_logger

logger = get_logger(__name__)

_HUB_URL = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo_id>\w[\w.-]*/[\w.-]+).*|hf://(?P<path>.+)"
)
_CACHED = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_HUB_NAME = re.compile(r"(?P<repo_id>\w[\w.-]*/[\w.-]+)(?::(?P<quantization>[\w.-]+))?")


@dataclass(frozen=True)
class HubModel:
    """What to fetch. quantization: for repositories of .gguf files; cache_folder: None for the hub's own."""

    repo_id: str
    quantization: str | None = None
    revision: str | None = None
    cache_folder: str | None = None
    token: str | None = None


def parse_hub_name(name: str) -> tuple[str, str | None] | None:
    """Split `repo/id` or `repo/id:QUANT`; return None when the name has another form."""
    match = _HUB_NAME.fullmatch(name)
    if match is None or ".." in name:
        return None
    return match["repo_id"], match["quantization"]


def name_meant(name: str) -> str | None:
    """Return the hub's name for the address of a model's page, or for the folder that caches a repository."""
    if match := _HUB_URL.fullmatch(name):
        return match["repo_id"] or match["path"]
    match = _CACHED.fullmatch(Path(name).name)
    return f"{match['owner']}/{match['name']}" if match else None


def fetch(model: HubModel, with_weights: bool = True) -> Path:
    """Return the snapshot's folder, or the chosen .gguf file in it, downloading what is not cached yet.

    Raises ModelNotFoundError when the repository, the revision or a fitting file is neither cached nor reachable.
    """
    where = f"the hub's {model.repo_id}" + (f" at {model.revision}" if model.revision else "")
    choice = choose_files(_list_files(model), where, model.quantization, with_weights)
    if not isinstance(choice, GGUFChoice):
        return _download(model, list(choice.names))
    if choice.others and model.quantization is None:
        logger.info("%s: taking %s; also there: %s", model.repo_id, choice.name, ", ".join(choice.others))
    return _download(model, [choice.name, *choice.more_parts]) / choice.name


def _list_files(model: HubModel) -> list[str]:
    """Return the names of the repository's files as the hub tells them, or as they are cached when it does not."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        # Not list_repo_files, which tries again for half a minute when there is no network.
        info = HfApi().model_info(model.repo_id, revision=model.revision, token=model.token)
    except HFValidationError as error:
        raise ModelNotFoundError(f"the hub has no such names: {error}") from None
    # The package's network errors have no common base: they are those of requests or httpx, and its own.
    except Exception as error:
        folder = _cached_folder(model)
        if folder is None:
            raise _not_found(model, error) from error
        logger.info("%s: using the cached snapshot (%s)", model.repo_id, _first_line(error))
        return present_names(folder, folder.rglob("*"))
    return [sibling.rfilename for sibling in info.siblings or []]


def _cached_folder(model: HubModel) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model.repo_id,
            revision=model.revision,
            cache_dir=model.cache_folder,
            local_files_only=True,
            allow_patterns=[],  # any part of it will do: what is there is looked at next
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder)


def _download(model: HubModel, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            model.repo_id,
            revision=model.revision,
            cache_dir=model.cache_folder,
            token=model.token,
            allow_patterns=[_literal_pattern(name) for name in names],
        )
    except Exception as error:  # see _list_files
        raise _not_found(model, error) from error
    missing = [name for name in names if not (Path(folder) / name).is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{model.repo_id}: {', '.join(missing[:10])} could not be downloaded and is not in the cache"
        )
    return Path(folder)


def _not_found(model: HubModel, error: Exception) -> ModelNotFoundError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        reason = "access is restricted: accept its terms on the hub and give a token (hf_token or HF_TOKEN)"
    elif isinstance(error, RepositoryNotFoundError):
        reason = "no such repository, or it is private and needs a token (hf_token or HF_TOKEN)"
    elif isinstance(error, RevisionNotFoundError):
        reason = f"it has no revision {model.revision!r}"
    else:
        reason = f"it is not in the local cache and the hub could not be asked ({_first_line(error)})"
    return ModelNotFoundError(f"{model.repo_id} on the Hugging Face hub: {reason}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _literal_pattern(name: str) -> str:
    """Return a shell pattern that matches just this file name."""
    return re.sub(r"([*?\[])", r"[\1]", name)
