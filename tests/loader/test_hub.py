"""The hub: from a cache folder laid out by the test, and over HTTP from a stand-in that this file runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from octavo.errors import ModelNotFoundError, UnsupportedError
from octavo.loader.hub import HubModel, fetch, parse_hub_name
from tests.loader import raw_gguf as raw

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def write_cache(cache: Path, repo_id: str, files: dict[str, bytes], revision: str = "main") -> Path:
    """Lay out a repository as huggingface_hub caches it."""
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for name, content in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(COMMIT)
    return snapshot


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/model", ("org/model", None)),
        ("org/model:Q4_K_M", ("org/model", "Q4_K_M")),
        ("a.b-c/d_e.f", ("a.b-c/d_e.f", None)),
        ("model", None),
        ("./model", None),
        ("/org/model", None),
        ("org/model/file.gguf", None),
        ("org/model:", None),
        ("../model", None),
        ("org/model:a/b", None),
    ],
)
def test_hub_names(name: str, expected: tuple[str, str | None] | None) -> None:
    assert parse_hub_name(name) == expected


def test_cached_folder_is_found_without_network(offline: None, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"", "tokenizer.json": b"{}"}
    snapshot = write_cache(tmp_path, "org/model", files)
    assert fetch(HubModel("org/model", cache_folder=str(tmp_path))) == snapshot


@pytest.mark.parametrize("name", ["y" * 200 + "/z", "a--b/c", "a/b.git"])
def test_a_name_that_the_hub_does_not_allow_is_not_found(name: str, offline: None, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="the hub has no such names"):
        fetch(HubModel(name, cache_folder=str(tmp_path)))


def test_cached_gguf_is_chosen_by_quantization(offline: None, tmp_path: Path) -> None:
    snapshot = write_cache(tmp_path, "org/model", {"m-Q4_0.gguf": b"", "m-Q8_0.gguf": b"", "sub/m-F16.gguf": b""})

    def chosen(quantization: str | None) -> Path:
        return fetch(HubModel("org/model", quantization, cache_folder=str(tmp_path)))

    assert chosen("q8_0") == snapshot / "m-Q8_0.gguf"
    assert chosen("F16") == snapshot / "sub" / "m-F16.gguf"
    assert chosen(None) == snapshot / "m-Q4_0.gguf"
    with pytest.raises(ModelNotFoundError, match=r"'Q5_0'; it has: m-Q4_0\.gguf, m-Q8_0\.gguf, sub/m-F16\.gguf"):
        chosen("Q5_0")


def test_cached_revision_is_the_one_asked_for(offline: None, tmp_path: Path) -> None:
    snapshot = write_cache(tmp_path, "org/model", {"m-Q4_0.gguf": b""}, revision="v2")
    model = HubModel("org/model", revision="v2", cache_folder=str(tmp_path))
    assert fetch(model) == snapshot / "m-Q4_0.gguf"
    assert fetch(HubModel("org/model", revision=COMMIT, cache_folder=str(tmp_path))) == snapshot / "m-Q4_0.gguf"
    with pytest.raises(ModelNotFoundError, match="not in the local cache"):
        fetch(HubModel("org/model", cache_folder=str(tmp_path)))


def test_uncached_repository_without_network(offline: None, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"org/model on the Hugging Face hub: .*not in the local cache"):
        fetch(HubModel("org/model", cache_folder=str(tmp_path)))


def test_cached_pickles_are_refused(offline: None, tmp_path: Path) -> None:
    write_cache(tmp_path, "org/model", {"config.json": b"{}", "pytorch_model.bin": b""})
    with pytest.raises(UnsupportedError, match=r"org/model has its weights in pytorch_model\.bin, a pickle"):
        fetch(HubModel("org/model", cache_folder=str(tmp_path)))


# -- over HTTP ---------------------------------------------------------------------------------------------------------


class _Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that a download needs."""

    repositories: dict[str, dict[str, bytes]] = {}
    fetched: list[str] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0].strip("/").split("/")
        if path[:2] == ["api", "models"]:
            self._answer_api("/".join(path[2:4]), path[4:])
            return
        repo_id, name = "/".join(path[:2]), "/".join(path[4:])
        content = self.repositories[repo_id][name]
        if with_body:
            self.fetched.append(name)
        self._send(content if with_body else b"", len(content), {"ETag": f'"{hash(content)}"', "X-Repo-Commit": COMMIT})

    def _answer_api(self, repo_id: str, rest: list[str]) -> None:
        files = self.repositories.get(repo_id)
        if files is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if rest[:1] == ["tree"]:
            body: object = [
                {"type": "file", "path": name, "size": len(content), "oid": str(hash(content))}
                for name, content in files.items()
            ]
        else:
            body = {"id": repo_id, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        raw_body = json.dumps(body).encode()
        self._send(raw_body, len(raw_body), {"Content-Type": "application/json"})

    def _send(self, body: bytes, length: int, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Serve repositories; yield the address and the list of file names fetched so far."""
    fetched: list[str] = []
    handler = type("Hub", (_Hub,), {"repositories": repositories, "fetched": fetched})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        thread.join()


_OPEN = """
import sys
from octavo.config.configs import LoadConfig
from octavo.errors import OctavoError
from octavo.loader.resolve import open_checkpoint
for name in sys.argv[1:]:
    try:
        checkpoint = open_checkpoint(name, LoadConfig())
        print(checkpoint.format, checkpoint.path)
    except OctavoError as error:
        print(type(error).__name__, error)
"""


def test_repositories_are_downloaded_once_and_work_offline_afterwards(tmp_path: Path) -> None:
    repositories = {
        "org/folder": {
            "config.json": json.dumps(CONFIG).encode(),
            "model.safetensors": b"weights",
            "pytorch_model.bin": b"pickle",
            "modeling_evil.py": b"raise SystemExit",
            "README.md": b"read me",
        },
        "org/gguf": {
            "m-Q4_K_M.gguf": bytes(raw.small_model("llama")),
            "m-Q8_0.gguf": bytes(raw.small_model("qwen2")),
        },
    }

    def open_models(endpoint: str, *names: str, **variables: str) -> list[str]:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        environment.update(
            {"PYTHONPATH": os.getcwd(), "OCTAVO_LOG_LEVEL": "ERROR", "NO_PROXY": "127.0.0.1", **variables}
        )
        command = [sys.executable, "-c", _OPEN, *names]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return result.stdout.splitlines()

    with running_hub(repositories) as (endpoint, fetched):
        lines = open_models(endpoint, "org/folder", "org/gguf:q8_0", "org/absent")
        assert lines[0].startswith("safetensors ") and lines[1].endswith("m-Q8_0.gguf")
        assert lines[2].startswith("ModelNotFoundError") and "no such repository" in lines[2]
        assert sorted(fetched) == ["config.json", "m-Q8_0.gguf", "model.safetensors"]
        assert open_models(endpoint, "org/folder", "org/gguf:Q8_0") == lines[:2]
        assert len(fetched) == 3
    assert open_models(endpoint, "org/folder", "org/gguf:Q8_0") == lines[:2]  # the hub is gone
    assert open_models(endpoint, "org/folder", "org/gguf:Q8_0", HF_HUB_OFFLINE="1") == lines[:2]
