"""Measure how long it takes from starting a process to a loaded engine, and to its first token.

Cold rounds begin with the model's files out of the system's file cache, warm rounds with them in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from octavo.entrypoints.bench.offline import add_engine_arguments, check_result_file, engine_args, write_json
from octavo.entrypoints.bench.statistics import mean, percentile
from octavo.errors import ConfigError, RequestFailedError

USAGE = "octavo bench startup [options]"
_MEASURES = ("import", "load", "ready", "first_token")
_TITLES = {
    "import": "Importing",
    "load": "Loading the model",
    "ready": "Process start to ready engine",
    "first_token": "Process start to first token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("benchmark", "what is measured")
    rounds = (("--num-iters-cold", 3, "cold"), ("--num-iters-warmup", 1, "unmeasured"), ("--num-iters-warm", 3, "warm"))
    for flag, default, text in rounds:
        group.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} rounds (default: {default})")
    group.add_argument("--output-json", metavar="FILE", help="write the result here")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    check_result_file(args.output_json)
    options = json.dumps(asdict(engine_args(args)))
    files = _files_of(args)
    cold = []
    for _ in range(args.num_iters_cold):
        _drop_from_cache(files)
        cold.append(_one_start(options))
    for _ in range(args.num_iters_warmup):
        _one_start(options)
    warm = [_one_start(options) for _ in range(args.num_iters_warm)]
    record: dict[str, Any] = {}
    for kind, rounds in (("cold", cold), ("warm", warm)):
        if rounds:
            print(f"{kind.capitalize()} start ({len(rounds)} rounds)")
            record |= _report(kind, rounds)
    write_json(args.output_json, record)
    return 0


def _report(kind: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name in _MEASURES:
        values = [one[name] for one in rounds]
        middle = percentile(values, 50)
        print(
            f"  {_TITLES[name] + ':':<32} {mean(values):8.3f} s mean, {middle:8.3f} s median, {min(values):8.3f} s best"
        )
        record[f"{kind}_{name}_s"] = {"mean": mean(values), "median": middle, "values": values}
    return record


def _one_start(options: str) -> dict[str, float]:
    """Start an engine in a new process; return seconds by measure."""
    started = time.time()
    command = [sys.executable, "-m", "octavo.entrypoints.bench.one_start"]
    done = subprocess.run(command, input=options, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RequestFailedError(f"the engine did not start: {lines[-1]}")
    moments: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "import": moments["imported"] - moments["began"],
        "load": moments["ready"] - moments["imported"],
        "ready": moments["ready"] - started,
        "first_token": moments["first_token"] - started,
    }


def _files_of(args: argparse.Namespace) -> list[Path]:
    """Return the model's files, fetched if need be: a download is no part of a start."""
    from octavo.config import LoadConfig
    from octavo.loader.resolve import open_checkpoint

    if args.num_iters_cold < 0 or args.num_iters_warm < 0 or args.num_iters_warmup < 0:
        raise ConfigError("numbers of rounds must not be negative")
    options = engine_args(args)
    path = open_checkpoint(
        options.model,
        LoadConfig(options.load_format),
        revision=options.revision,
        download_dir=options.download_dir,
        hf_token=options.hf_token,
    ).path
    return [path] if path.is_file() else [one for one in path.iterdir() if one.is_file()]


def _drop_from_cache(files: Sequence[Path]) -> None:
    if not hasattr(os, "posix_fadvise"):
        raise ConfigError("cold starts cannot be measured on this system; use --num-iters-cold 0")
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
