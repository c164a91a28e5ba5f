from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.config.configs import LoadConfig
from octavo.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedError
from octavo.loader import catalog, hub
from octavo.loader.open import open_weights
from octavo.loader.resolve import open_checkpoint
from tests.loader import raw_gguf as raw

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "auto_map": {"AutoModel": "modeling_evil.Evil"}}


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    return folder


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    path.write_bytes(bytes(raw.small_model(architecture)))
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an empty model cache, and a hub and an index that must not be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))

    def asked(*args: object, **kwargs: object) -> None:
        raise ModelNotFoundError("the network was asked")

    monkeypatch.setattr(hub, "fetch", asked)
    monkeypatch.setattr(catalog, "pull", asked)
    return tmp_path


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A folder that other users reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_folder_is_opened_with_its_config_and_weights(elsewhere: Path) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [1, 2]}')
    checkpoint = open_checkpoint("model", LoadConfig())
    assert (checkpoint.name, checkpoint.format, checkpoint.gguf) == ("model", "safetensors", None)
    assert checkpoint.path == Path("model")
    assert checkpoint.config.list("architectures") == ["LlamaForCausalLM"]
    assert checkpoint.generation_config == {"temperature": 0.6, "eos_token_id": [1, 2]}
    assert open_weights(checkpoint, LoadConfig()).get("model.norm.weight", (3,)).float32().tolist() == [1, 1, 1]


def test_gguf_file_is_opened_with_its_metadata(elsewhere: Path) -> None:
    path = write_gguf(elsewhere / "m.gguf")
    checkpoint = open_checkpoint(str(path), LoadConfig())
    assert checkpoint.format == "gguf" and checkpoint.path == path
    assert checkpoint.config.int("hidden_size") == 8
    assert checkpoint.generation_config == {"eos_token_id": [2]}
    assert checkpoint.gguf is not None
    assert checkpoint.gguf.strings("tokenizer.ggml.tokens") == ["<s>", "é", "</s>"]
    values = open_weights(checkpoint, LoadConfig()).get("model.embed_tokens.weight", (3, 8)).float32()
    np.testing.assert_array_equal(values, np.arange(24).reshape(3, 8))


def test_folder_of_gguf_files_takes_a_quantization(elsewhere: Path) -> None:
    folder = elsewhere / "models"
    folder.mkdir()
    write_gguf(folder / "m-Q4_0.gguf", "llama")
    write_gguf(folder / "m-Q8_0.gguf", "qwen2")
    assert open_checkpoint(str(folder), LoadConfig()).path.name == "m-Q4_0.gguf"
    assert open_checkpoint(f"{folder}:q8_0", LoadConfig()).path.name == "m-Q8_0.gguf"
    with pytest.raises(ModelNotFoundError, match=r"'Q5_0'; it has: m-Q4_0\.gguf, m-Q8_0\.gguf"):
        open_checkpoint(f"{folder}:Q5_0", LoadConfig())


def test_local_folders_come_before_the_catalog_and_the_hub(elsewhere: Path) -> None:
    write_folder(elsewhere / "smollm2")
    write_folder(elsewhere / "org" / "model")
    assert open_checkpoint("smollm2", LoadConfig()).format == "safetensors"
    assert open_checkpoint("org/model", LoadConfig()).format == "safetensors"


def test_catalog_comes_before_the_hub(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(elsewhere / "pulled.gguf")
    monkeypatch.setattr(catalog, "pull", lambda name: path)
    for name in ("smollm2", "SmolLM2-135M-Instruct", "gemma-3-270m"):
        assert open_checkpoint(name, LoadConfig()).path == path


def test_hub_gets_what_the_name_and_the_options_say(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(elsewhere / "fetched.gguf")
    requests: list[tuple[hub.HubModel, bool]] = []

    def fetch(model: hub.HubModel, with_weights: bool = True) -> Path:
        requests.append((model, with_weights))
        return path

    monkeypatch.setattr(hub, "fetch", fetch)
    options = {"revision": "v2", "download_dir": "/cache", "hf_token": "secret"}
    assert open_checkpoint("org/model:Q4_0", LoadConfig(), **options).path == path
    assert requests == [(hub.HubModel("org/model", "Q4_0", "v2", "/cache", "secret"), True)]
    open_checkpoint("org/model", LoadConfig(load_format="dummy"))
    assert requests[1] == (hub.HubModel("org/model"), False)


def test_name_of_nothing_says_what_was_tried(elsewhere: Path) -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        open_checkpoint("org/model", LoadConfig())
    for part in (str(elsewhere / "org/model"), "smollm2-135m-instruct, gemma-3-270m", "the network was asked"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        *("absent", "./absent", "/absent/model", "absent.gguf", "org/model.gguf", ""),
        *("~nobody-of-this-name/x", "x" * 5000, "./" + "y" * 5000 + "/z", "a\0b"),
    ],
    ids=lambda name: repr(name)[:20],
)
def test_names_that_no_repository_has_do_not_ask_the_hub(name: str, elsewhere: Path) -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        open_checkpoint(name, LoadConfig())
    assert "the network was asked" not in str(raised.value)


def test_misspelt_names_hint_at_the_catalog_and_at_what_lies_beside(elsewhere: Path) -> None:
    (elsewhere / "My-Model").mkdir()
    for name, meant in (("smollm2-135m-instuct", "smollm2-135m-instruct"), ("./my-modle", "My-Model")):
        with pytest.raises(ModelNotFoundError, match=f"did you mean {meant}"):
            open_checkpoint(name, LoadConfig())


@pytest.mark.parametrize(
    "name", ["https://huggingface.co/org/model", "https://hf.co/org/model/tree/main", "hf://org/model"]
)
def test_addresses_of_the_hub_hint_at_the_name(name: str, elsewhere: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"; did you mean org/model\?"):
        open_checkpoint(name, LoadConfig())


def test_the_folder_that_caches_a_repository_hints_at_its_name(elsewhere: Path) -> None:
    write_folder(elsewhere / "models--org--my--model" / "snapshots" / "0")
    with pytest.raises(ModelNotFoundError, match=r"; did you mean org/my--model\?"):
        open_checkpoint("models--org--my--model", LoadConfig())


@pytest.mark.parametrize("name", ["", " "])
def test_a_name_that_is_empty_is_not_the_working_folder(name: str, elsewhere: Path) -> None:
    write_folder(elsewhere)
    with pytest.raises(ModelNotFoundError, match="a model has a name or a path"):
        open_checkpoint(name, LoadConfig())


def test_links_to_files_that_are_gone_are_named(elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/0")
    with caplog.at_level("WARNING", "octavo"), pytest.raises(ModelNotFoundError, match="is not a model"):
        open_checkpoint("model", LoadConfig())
    assert "links to files that are gone: model.safetensors" in caplog.text


@pytest.mark.parametrize(
    ("mode", "what", "error"),
    [
        (0o000, "model", CheckpointError),  # neither listed nor entered
        (0o444, "model", CheckpointError),  # listed, and no file of it seen
        (0o000, ".", ModelNotFoundError),  # not known whether it is there
    ],
)
def test_what_may_not_be_read_is_said_to_be_so(
    mode: int, what: str, error: type[Exception], elsewhere: Path, others_folder: Path
) -> None:
    folder = write_folder(others_folder / "models" / "model")
    shut = folder.parent / what
    shut.chmod(mode)
    if os.geteuid() == 0:  # which may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(error, match=f"{re.escape(str(folder))}.*: Permission denied"):
            open_checkpoint(str(folder), LoadConfig())
    finally:
        os.seteuid(os.getuid())
        shut.chmod(0o755)


def test_pickled_weights_and_other_files_are_refused(elsewhere: Path) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="a pickle that could run code"):
        open_checkpoint(str(folder), LoadConfig())
    with pytest.raises(UnsupportedError, match=r"not a \.gguf file"):
        open_checkpoint(str(folder / "config.json"), LoadConfig())


def test_code_in_the_folder_never_runs(elsewhere: Path) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / "modeling_evil.py").write_text(f"open({str(elsewhere / 'ran')!r}, 'w')")
    open_weights(open_checkpoint(str(folder), LoadConfig()), LoadConfig())
    assert not (elsewhere / "ran").exists()


def test_dummy_weights_need_no_tensors(elsewhere: Path) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError):
        open_checkpoint(str(folder), LoadConfig())
    load = LoadConfig(load_format="dummy")
    weights = open_weights(open_checkpoint(str(folder), load), load)
    assert weights.get("anything", (2, 5)).float32().shape == (2, 5)


def test_load_format_must_be_the_model_s_own(elsewhere: Path) -> None:
    folder, path = write_folder(elsewhere / "model"), write_gguf(elsewhere / "m.gguf")
    assert open_checkpoint(str(folder), LoadConfig(load_format="safetensors")).format == "safetensors"
    assert open_checkpoint(str(path), LoadConfig(load_format="gguf")).format == "gguf"
    with pytest.raises(ConfigError, match="load_format='gguf', but"):
        open_checkpoint(str(folder), LoadConfig(load_format="gguf"))
    with pytest.raises(ConfigError, match="load_format='safetensors', but"):
        open_checkpoint(str(path), LoadConfig(load_format="safetensors"))


@pytest.mark.parametrize("file_name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_corrupt_json_is_refused_by_name(file_name: str, content: bytes, elsewhere: Path) -> None:
    folder = write_folder(elsewhere / "model")
    (folder / file_name).write_bytes(content)
    with pytest.raises(CheckpointError, match=file_name.replace(".", r"\.")):
        open_checkpoint(str(folder), LoadConfig())


def test_home_is_expanded(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    shutil.move(write_folder(elsewhere / "model"), elsewhere / "mine")
    assert open_checkpoint("~/mine", LoadConfig()).path == elsewhere / "mine"
