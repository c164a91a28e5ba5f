"""Prompts for benchmarks. The same seed gives the same prompts, whatever engine reads them.

random: random tokens; sharegpt: conversations from a JSON file; prefix_repetition: few long beginnings, many ends;
custom: a JSONL file of prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.tokenizers.tokenizer import Tokenizer

DATASETS = ("random", "sharegpt", "prefix_repetition", "custom")
_MAX_REENCODINGS = 10
_SHAREGPT_LIMITS = {"least": 4, "prompt": 1024, "total": 2048}  # as vLLM prunes the dataset, in tokens


@dataclass(frozen=True)
class BenchPrompt:
    """One request to come. Lengths in tokens; output_len: how many tokens it may generate."""

    text: str
    prompt_len: int
    output_len: int


@dataclass(frozen=True)
class DatasetOptions:
    """Which prompts, and how many; the fields are those of the command line."""

    name: str
    num_prompts: int
    seed: int
    path: str | None = None
    shuffle: bool = True
    oversample: bool = True
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    sharegpt_output_len: int | None = None
    custom_output_len: int = 256
    custom_skip_chat_template: bool = False
    repeated_prefix_len: int = 256
    repeated_suffix_len: int = 256
    num_repeated_prefixes: int = 10
    repeated_output_len: int = 128

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise ConfigError(f"--num-prompts must be at least 1, got {self.num_prompts}")
        if self.path is None and self.name in ("sharegpt", "custom"):
            raise ConfigError(f"--dataset-name {self.name} needs --dataset-path FILE")
        if self.path is not None and not Path(self.path).exists():
            raise ConfigError(f"--dataset-path: there is no {self.path}")


def make_prompts(options: DatasetOptions, tokenizer: Tokenizer) -> list[BenchPrompt]:
    """Return the prompts; raises ConfigError for impossible lengths and unreadable files."""
    source = random.Random(options.seed)
    if options.name == "random":
        return _random(options, tokenizer, source)
    if options.name == "prefix_repetition":
        return _prefix_repetition(options, tokenizer, source)
    assert options.path is not None, "DatasetOptions checks it"
    prompts = (
        _sharegpt(options, tokenizer, source) if options.name == "sharegpt" else _custom(options, tokenizer, source)
    )
    return _repeated(prompts, options)


# -- random tokens -----------------------------------------------------------------------------------------------------


def _random(options: DatasetOptions, tokenizer: Tokenizer, source: random.Random) -> list[BenchPrompt]:
    if not 0 <= options.range_ratio < 1:
        raise ConfigError(f"--random-range-ratio must be from 0 to below 1, got {options.range_ratio}")
    words = _plain_tokens(tokenizer)
    prefix = source.choices(words, k=options.prefix_len)
    prompts = []
    for _ in range(options.num_prompts):
        input_len = _length_near(options.input_len, options.range_ratio, source)
        output_len = _length_near(options.output_len, options.range_ratio, source)
        token_ids = [*prefix, *source.choices(words, k=input_len)]
        prompts.append(_as_text(tokenizer, token_ids, words, output_len, source))
    return prompts


def _prefix_repetition(options: DatasetOptions, tokenizer: Tokenizer, source: random.Random) -> list[BenchPrompt]:
    if options.num_repeated_prefixes < 1:
        raise ConfigError(f"--prefix-repetition-num-prefixes must be at least 1, got {options.num_repeated_prefixes}")
    words = _plain_tokens(tokenizer)
    prefixes = [source.choices(words, k=options.repeated_prefix_len) for _ in range(options.num_repeated_prefixes)]
    prompts = []
    for index in range(options.num_prompts):
        suffix = source.choices(words, k=options.repeated_suffix_len)
        token_ids = [*prefixes[index % len(prefixes)], *suffix]
        prompts.append(_as_text(tokenizer, token_ids, words, options.repeated_output_len, source))
    source.shuffle(prompts)
    return prompts


def _length_near(length: int, ratio: float, source: random.Random) -> int:
    if length < 1:
        raise ConfigError(f"lengths of prompts and answers must be at least 1 token, got {length}")
    return source.randint(max(1, int(length * (1 - ratio))), max(1, int(length * (1 + ratio))))


def _plain_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that are whole words or parts of words, and nothing special."""
    special = set(tokenizer.get_added_vocab().values())
    plain = []
    for token_id in sorted(tokenizer.get_vocab().values()):
        if token_id not in special and tokenizer.token_bytes(token_id).isascii() and tokenizer.token_bytes(token_id):
            plain.append(token_id)
    return plain


def _as_text(
    tokenizer: Tokenizer, token_ids: list[int], words: Sequence[int], output_len: int, source: random.Random
) -> BenchPrompt:
    """Return a text of as many tokens, special ones not counted.

    Text is what every server takes. Neighbouring tokens may join when it is read again, so the end is mended until the
    length is right.
    """
    wanted = len(token_ids)
    text = tokenizer.decode(token_ids)
    for _ in range(_MAX_REENCODINGS):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        if len(token_ids) == wanted:
            break
        missing = max(0, wanted - len(token_ids))
        text = tokenizer.decode([*token_ids[:wanted], *source.choices(words, k=missing)])
    return BenchPrompt(text, len(token_ids), output_len)


# -- files -------------------------------------------------------------------------------------------------------------


def _sharegpt(options: DatasetOptions, tokenizer: Tokenizer, source: random.Random) -> list[BenchPrompt]:
    """Take the first two turns of each conversation: [{"conversations": [{"value": prompt}, {"value": answer}]}]."""
    path = Path(options.path or "")
    content = _read_json(path)
    if not isinstance(content, list):
        raise ConfigError(f"{path}: expected a JSON list of conversations, got {type(content).__name__}")
    turns = [_first_turns(entry) for entry in content]
    pairs = [pair for pair in turns if pair is not None]
    if options.shuffle:
        source.shuffle(pairs)
    prompts: list[BenchPrompt] = []
    for prompt, answer in pairs:
        if len(prompts) == options.num_prompts:
            break
        prompt_len = len(tokenizer.encode(prompt))
        output_len = options.sharegpt_output_len or len(tokenizer.encode(answer, add_special_tokens=False))
        if _is_usable(prompt_len, output_len, options.sharegpt_output_len is not None):
            prompts.append(BenchPrompt(prompt, prompt_len, output_len))
    return prompts


def _first_turns(entry: object) -> tuple[str, str] | None:
    turns = entry.get("conversations") if isinstance(entry, Mapping) else None
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, Mapping) for turn in turns[:2]):
        return None
    prompt, answer = turns[0].get("value"), turns[1].get("value")
    return (prompt, answer) if isinstance(prompt, str) and isinstance(answer, str) else None


def _is_usable(prompt_len: int, output_len: int, has_fixed_output: bool) -> bool:
    limits = _SHAREGPT_LIMITS
    is_long_enough = prompt_len >= limits["least"] and (has_fixed_output or output_len >= limits["least"])
    return is_long_enough and prompt_len <= limits["prompt"] and prompt_len + output_len <= limits["total"]


def _custom(options: DatasetOptions, tokenizer: Tokenizer, source: random.Random) -> list[BenchPrompt]:
    """Read a JSONL file: {"prompt": text, "output_tokens": number, optional} a line."""
    path = Path(options.path or "")
    lines = [line for line in _read_text(path).splitlines() if line.strip()]
    prompts = [_custom_prompt(options, tokenizer, f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    if options.shuffle:
        source.shuffle(prompts)
    return prompts[: options.num_prompts]


def _custom_prompt(options: DatasetOptions, tokenizer: Tokenizer, where: str, line: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    text = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f'{where}: expected an object with a text "prompt"')
    output_len = entry.get("output_tokens", options.custom_output_len)
    if options.custom_output_len != -1:
        output_len = options.custom_output_len
    if type(output_len) is not int or output_len < 1:
        raise ConfigError(f'{where}: "output_tokens" must be a positive number with --custom-output-len -1')
    if not options.custom_skip_chat_template:
        messages = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return BenchPrompt(text, len(tokenizer.encode(text)), output_len)


def _repeated(prompts: list[BenchPrompt], options: DatasetOptions) -> list[BenchPrompt]:
    """Return as many prompts as asked for, again from the beginning where the file has fewer."""
    if not prompts:
        raise ConfigError(f"{options.path} has no usable prompt")
    if not options.oversample:
        return prompts
    return [prompts[index % len(prompts)] for index in range(options.num_prompts)]


def _read_json(path: Path) -> object:
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
