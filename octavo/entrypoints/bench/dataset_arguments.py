"""The flags that choose a benchmark's prompts, under vLLM's names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from octavo.entrypoints.bench.datasets import DATASETS, DatasetOptions

if TYPE_CHECKING:
    from octavo.tokenizers.tokenizer import Tokenizer


def add_dataset_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the flags; lengths that are given win over those of the dataset's own flags."""
    group = parser.add_argument_group("dataset", "which prompts are sent; nothing is downloaded")
    group.add_argument(
        "--dataset-name", choices=DATASETS, default=default, help=f"kind of prompts (default: {default})"
    )
    group.add_argument("--dataset-path", metavar="FILE", help="sharegpt: JSON file; custom: JSONL file")
    group.add_argument("--num-prompts", type=int, default=1000, metavar="N", help="requests to send (default: 1000)")
    group.add_argument("--input-len", type=int, metavar="N", help="tokens per prompt, whatever the dataset calls it")
    group.add_argument("--output-len", type=int, metavar="N", help="tokens per answer, whatever the dataset calls it")
    group.add_argument("--disable-shuffle", action="store_true", help="take a file's prompts in order")
    group.add_argument("--no-oversample", action="store_true", help="do not repeat a file that has too few prompts")
    group.add_argument("--random-input-len", type=int, default=1024, metavar="N", help="random: tokens (default: 1024)")
    group.add_argument("--random-output-len", type=int, default=128, metavar="N", help="random: tokens (default: 128)")
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="X", help="random: lengths from (1-X) to (1+X) times"
    )
    group.add_argument("--random-prefix-len", type=int, default=0, metavar="N", help="random: tokens that all share")
    group.add_argument("--sharegpt-output-len", type=int, metavar="N", help="sharegpt: tokens, not as in the file")
    group.add_argument(
        "--custom-output-len",
        type=int,
        default=256,
        metavar="N",
        help="custom: tokens (default: 256); -1: as in the file",
    )
    group.add_argument("--custom-skip-chat-template", action="store_true", help="custom: prompts are sent as they are")
    for name, default_value in (("prefix-len", 256), ("suffix-len", 256), ("num-prefixes", 10), ("output-len", 128)):
        flag = f"--prefix-repetition-{name}"
        text = f"prefix_repetition: (default: {default_value})"
        group.add_argument(flag, type=int, default=default_value, metavar="N", help=text)


def dataset_options(args: argparse.Namespace, seed: int, skip_chat_template: bool = False) -> DatasetOptions:
    """Return what the flags say. skip_chat_template: the endpoint applies it itself."""
    custom_output_len = args.custom_output_len if args.output_len is None else args.output_len
    return DatasetOptions(
        name=args.dataset_name,
        num_prompts=args.num_prompts,
        seed=seed,
        path=args.dataset_path,
        shuffle=not args.disable_shuffle,
        oversample=not args.no_oversample,
        input_len=args.random_input_len if args.input_len is None else args.input_len,
        output_len=args.random_output_len if args.output_len is None else args.output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        sharegpt_output_len=args.sharegpt_output_len if args.output_len is None else args.output_len,
        custom_output_len=custom_output_len,
        custom_skip_chat_template=args.custom_skip_chat_template or skip_chat_template,
        repeated_prefix_len=args.prefix_repetition_prefix_len,
        repeated_suffix_len=args.prefix_repetition_suffix_len if args.input_len is None else args.input_len,
        num_repeated_prefixes=args.prefix_repetition_num_prefixes,
        repeated_output_len=args.prefix_repetition_output_len if args.output_len is None else args.output_len,
    )


def tokenizer_of(name: str) -> Tokenizer:
    """Return the tokenizer of a model by any name that models have; no weights are read."""
    from octavo.config import LoadConfig
    from octavo.loader.resolve import open_checkpoint
    from octavo.tokenizers.tokenizer import load_tokenizer

    return load_tokenizer(open_checkpoint(name, LoadConfig("dummy")))
