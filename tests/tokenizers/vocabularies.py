# ruff: noqa: RUF001  # characters that look like others are the point here
"""Small vocabularies in GGUF's terms, and hard strings to tokenise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from octavo.tokenizers.gguf_vocab import GGUFVocabulary, build_gguf_tokenizer
from octavo.tokenizers.pieces import BYTE_OF_CHARACTER
from octavo.tokenizers.sentencepiece_bpe import TokenType
from octavo.tokenizers.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = (
    *(TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL),
    *(TokenType.USER_DEFINED, TokenType.BYTE),
)


def byte_level_vocabulary(**changes: Any) -> GGUFVocabulary:
    """256 byte tokens (id = byte), "he" 256, "ll" 257, "hell" 258, then <s>, </s>, <|im_end|> and <think>."""
    spelling = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    tokens = [*(spelling[byte] for byte in range(256)), "he", "ll", "hell", "<s>", "</s>", "<|im_end|>", "<think>"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "types": [*[NORMAL] * 259, CONTROL, CONTROL, CONTROL, USER_DEFINED],
        "scores": [0.0] * len(tokens),
        "merges": ["h e", "l l", "he ll"],
        "special_ids": {"bos": 259, "eos": 260},
    }
    return GGUFVocabulary(**{**fields, **changes})


def sentencepiece_vocabulary(**changes: Any) -> GGUFVocabulary:
    """<unk>, <s>, </s>, 256 byte tokens from id 3, then letters, words with scores, a run of spaces and <table>."""
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz.", "▁a", "in", "▁the", "th", "he", "▁t", "er", "▁b", "▁th"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "  ", "<table>"]
    num_words = len(words)
    fields: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "types": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * num_words, USER_DEFINED, USER_DEFINED],
        "scores": [*[0.0] * 259, *(-float(i) for i in range(num_words)), -1000.0, -1000.0],
        "merges": [],
        "special_ids": {"unknown": 0, "bos": 1, "eos": 2},
    }
    return GGUFVocabulary(**{**fields, **changes})


def byte_level_tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer(build_gguf_tokenizer(byte_level_vocabulary(**changes)))


def sentencepiece_tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer(build_gguf_tokenizer(sentencepiece_vocabulary(**changes)))


HARD_STRINGS = [
    *("", " ", "  ", "a", " a", "a ", "Hello world", "Hello  world", "x" + " " * 40 + "y", "\n", "\n\n\n\t x"),
    *("1234567 12 3", " 123 456", "it's I'll WE'RE don’t", "Příliš žluťoučký kůň", "สวัสดีครับ", "日本語テキスト"),
    *("<|im_start|>user\nHi<|im_end|>", "<|im_end|>\n<|im_end|> x", "<bos>hi<eos>", "a<|im_start|>b <|im_start|> c"),
    *("<start_of_turn>user\nhi<end_of_turn>\n", "<end_of_turn", "<|im_start", "<|endoftext|><reponame>"),
    *("🤯👩‍👩‍👧‍👦🇨🇿", "a\u0301e\u0308", "\x00\x01\x7f", "\ufeffbom", "\u200b\u200d", "▁▁x ▁", "<0x0A> <0xFF>"),
    *("<table><tr></s>", "def f(x):\n    return x\n\n\n\tpass  # ok", "½ ² Ⅷ ٣٤ 一二", "\r\n\r\n", "é" * 50, "a" * 300),
    *("<unused5> [multimodal]", "ﷺ ﬁ", "\U0010ffff\ue000", "Ġ Ċ æ", "https://x.y/z?a=b&c=%20", "\u3000x\u00a0y"),
    *("...", "!!!???", "$100,000.00", "𝕳𝖊𝖑𝖑𝖔", "نص عربي", "हिन्दी", "한국어", " 👍 ", "\u2028\u2029\x85"),
]


def random_strings(count: int, seed: int) -> Iterator[str]:
    """Yield mixtures of ASCII, white space, many scripts, emoji and pieces of special tokens."""
    rng = random.Random(seed)
    fragments = ["<|im_start|>", "<end_of_turn>", "the", "123", "▁", "'s", " ing", "<0x41>", "\n\n", "   "]
    pools = [
        lambda: chr(rng.randrange(32, 127)),
        lambda: rng.choice(" \n\t  "),
        lambda: chr(rng.randrange(0xA0, 0x3000)),
        lambda: chr(rng.choice([rng.randrange(0x3000, 0xD7FF), rng.randrange(0x1F300, 0x1FAFF)])),
        lambda: rng.choice(fragments),
    ]
    for _ in range(count):
        weights = [rng.random() for _ in pools]
        yield "".join(rng.choices(pools, weights)[0]() for _ in range(rng.randrange(1, 40)))
