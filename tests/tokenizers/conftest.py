"""The catalog's real tokenizers."""

from __future__ import annotations

import pytest

from octavo.loader.catalog import pull
from octavo.loader.gguf_file import GGUFFile
from octavo.tokenizers.gguf_vocab import load_gguf_tokenizer
from octavo.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return Tokenizer(load_gguf_tokenizer(GGUFFile(pull("smollm2-135m-instruct"))))


@pytest.fixture(scope="session")
def gemma() -> Tokenizer:
    return Tokenizer(load_gguf_tokenizer(GGUFFile(pull("gemma-3-270m"))))
