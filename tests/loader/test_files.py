from __future__ import annotations

import pytest

from octavo.errors import ModelNotFoundError, UnsupportedError
from octavo.loader.files import GGUFChoice, SafetensorsFiles, choose_files

REPOSITORY = [
    "README.md", ".gitattributes", "mmproj-model-f16.gguf", "imatrix.gguf", "Model-Q2_K.gguf", "Model-Q4_0.gguf",
    "Model-Q4_0_4_4.gguf", "Model-Q4_K_M.gguf", "Model-UD-Q4_K_XL.gguf", "Model-IQ4_XS.gguf", "Model.Q8_0.gguf",
    "Model-f16.gguf",
]  # fmt: skip


def chosen(names: list[str], quantization: str | None = None) -> str:
    choice = choose_files(names, "the folder", quantization)
    assert isinstance(choice, GGUFChoice)
    return choice.name


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ("Q4_K_M", "Model-Q4_K_M.gguf"),
        ("q4_k_m", "Model-Q4_K_M.gguf"),
        ("Q4_0", "Model-Q4_0.gguf"),
        ("Q8_0", "Model.Q8_0.gguf"),
        ("F16", "Model-f16.gguf"),
        ("IQ4_XS", "Model-IQ4_XS.gguf"),
        ("UD-Q4_K_XL", "Model-UD-Q4_K_XL.gguf"),
        ("Q2_K", "Model-Q2_K.gguf"),
    ],
)
def test_quantization_picks_the_file_that_carries_it(quantization: str, name: str) -> None:
    assert chosen(REPOSITORY, quantization) == name


@pytest.mark.parametrize("quantization", ["Q4_K", "Q4", "4_K_M", "K_M", "M", "0", "Q9_9", "Model.*", "XS"])
def test_unknown_quantization_lists_what_is_there(quantization: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"the folder has no \.gguf file .*Model-Q4_K_M\.gguf"):
        choose_files(REPOSITORY, "the folder", quantization)


def test_quantization_of_a_repository_without_gguf_files() -> None:
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf file at all"):
        choose_files(["config.json", "model.safetensors"], "the folder", "Q4_0")


def test_default_among_gguf_files_is_a_common_one() -> None:
    assert chosen(REPOSITORY) == "Model-Q4_K_M.gguf"
    assert chosen(["m-f16.gguf", "m-Q8_0.gguf"]) == "m-Q8_0.gguf"
    assert chosen(["whatever.gguf"]) == "whatever.gguf"
    with pytest.raises(ModelNotFoundError, match=r"name one: a\.gguf, b\.gguf"):
        choose_files(["b.gguf", "a.gguf"], "the folder")


def test_all_files_of_a_split_model_are_taken() -> None:
    names = [f"sub/big-Q4_K_M-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for quantization in (None, "Q4_K_M"):
        choice = choose_files([*reversed(names), "big-F16.gguf"], "the folder", quantization)
        assert choice == GGUFChoice(names[0], ("big-F16.gguf",), tuple(names[1:]))
    with pytest.raises(ModelNotFoundError, match=r"the split model sub/big-Q4_K_M there is no .*-00002-of-00003\.gguf"):
        choose_files([names[0], names[2]], "the folder")


def test_safetensors_win_over_gguf_and_pickles() -> None:
    names = [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
        "consolidated.safetensors", "pytorch_model.bin", "training_args.bin", "model-Q4_0.gguf", "modeling_evil.py",
        "onnx/model.safetensors",
    ]  # fmt: skip
    choice = choose_files(names, "the folder")
    assert choice == SafetensorsFiles(
        ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    )


def test_sharded_safetensors_come_with_their_index() -> None:
    shards = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    names = ["config.json", "consolidated.safetensors", *shards, "model.safetensors.index.json"]
    choice = choose_files(names, "the folder")
    assert choice == SafetensorsFiles(("config.json", "model.safetensors.index.json", *shards))


def test_dummy_weights_need_only_the_config() -> None:
    names = ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"]
    for there in (names, names[:2]):
        assert choose_files(there, "the folder", with_weights=False) == SafetensorsFiles(
            ("config.json", "tokenizer.json")
        )
    with pytest.raises(ModelNotFoundError):
        choose_files(names[:2], "the folder")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{name}, a pickle that could run code"):
        choose_files(["config.json", name], "the folder")


def test_folder_of_something_else_says_what_is_needed_and_there() -> None:
    with pytest.raises(ModelNotFoundError, match=r"the folder is not a model: .*it has: holiday\.jpg"):
        choose_files(["holiday.jpg"], "the folder")
    with pytest.raises(ModelNotFoundError, match="no files"):
        choose_files([], "the folder")
