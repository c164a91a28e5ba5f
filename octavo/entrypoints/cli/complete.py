"""Continue texts on a server: one given with --quick, or line by line from the terminal or a pipe.

For texts to be continued by a model that is loaded here, use `octavo generate`. Ctrl-C stops an answer, Ctrl-D leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

from octavo.entrypoints.cli.answering import report_speed, show
from octavo.entrypoints.cli.arguments import add_output_arguments, add_sampling_arguments, given_sampling_options
from octavo.entrypoints.cli.remote import DEFAULT_URL, RemoteServer, add_server_arguments
from octavo.errors import InvalidRequestError
from octavo.utils.interrupts import deferred_interrupt

USAGE = "octavo complete [options]"
DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quick", metavar="TEXT", help="continue one text and leave")
    add_output_arguments(parser)
    add_server_arguments(parser, DEFAULT_URL)
    add_sampling_arguments(parser, DEFAULT_MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    sampling = {"max_tokens": DEFAULT_MAX_TOKENS, **given_sampling_options(args)}
    if sampling.get("n", 1) != 1:
        raise InvalidRequestError(f"n must be 1 here, got {sampling['n']}", "n")
    server = RemoteServer.from_arguments(args)
    lines = [args.quick] if args.quick is not None else _lines()
    for line in lines:
        if not line:
            continue
        with contextlib.suppress(KeyboardInterrupt), deferred_interrupt() as interrupt:
            started = time.monotonic()
            num_tokens = 0
            for piece in server.stream_completion(line, sampling, interrupt):
                num_tokens += piece.num_tokens
                show(piece)
            print(flush=True)
            if not args.quiet:
                report_speed(num_tokens, time.monotonic() - started, interrupt.requested)
    return 0


def _lines() -> Iterator[str]:
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
