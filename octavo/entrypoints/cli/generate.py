"""Complete prompts given as arguments, on standard input or in a JSONL file.

One prompt: the answer is streamed as text. Many: one JSON object per line, in the order of the prompts.
A JSONL line holds "prompt", "messages" or "prompt_token_ids", an optional "id" that is copied to the result, and any
sampling parameters of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from octavo.entrypoints.cli.arguments import (
    add_engine_arguments,
    add_output_arguments,
    add_sampling_arguments,
    given_sampling_options,
)
from octavo.entrypoints.cli.files import is_same_file, open_results, refuse_urls, start_afresh
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.entrypoints.cli.prompts import PromptItem
    from octavo.entrypoints.cli.session import Session
    from octavo.types.outputs import RequestOutput

USAGE = "octavo generate [PROMPT …] [options]"
DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to complete (default: standard input)")
    parser.add_argument("-f", "--file", metavar="FILE", help='JSONL file of prompts; "-": standard input')
    parser.add_argument("--jsonl", metavar="FILE", help='write JSONL to FILE ("-": standard output)')
    parser.add_argument("--text", action="store_true", help="write text for many prompts too")
    parser.add_argument("--chat", action="store_true", help="each prompt is a user's message: use the chat template")
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message for --chat")
    add_output_arguments(parser)
    add_sampling_arguments(parser, DEFAULT_MAX_TOKENS)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from octavo.entrypoints.cli.prompts import check_sampling
    from octavo.entrypoints.cli.session import Session

    _check_arguments(args)
    common = given_sampling_options(args)
    items = _read_items(args)
    check_sampling(items, common)
    if not items:
        return 0
    with open_results(args.jsonl, sys.stdout, mode="a", encoding="utf-8") as file:
        session = Session.from_arguments(args, any(item.messages is not None for item in items))
        as_text = args.text or (len(items) == 1 and args.file is None and args.jsonl is None)
        if as_text and len(items) == 1 and common.get("n", 1) == 1:
            return _stream_one(session, items[0], common, file, args.quiet)
        return _run_many(session, items, common, file, as_text, args.quiet)


def _check_arguments(args: argparse.Namespace) -> None:
    refuse_urls(args.file, args.jsonl)
    if args.prompts and args.file is not None:
        raise InvalidRequestError("give prompts as arguments or with --file, not both")
    if args.text and args.jsonl is not None:
        raise InvalidRequestError("--text and --jsonl exclude each other")
    if is_same_file(args.file, args.jsonl):
        raise InvalidRequestError(f"--jsonl would overwrite the prompts in {args.file}; name another file")
    if args.file is not None and (args.chat or args.system_prompt):
        raise InvalidRequestError('--chat and --system-prompt are for arguments; in a JSONL file use "messages"')
    if args.system_prompt and not args.chat:
        raise InvalidRequestError("--system-prompt needs --chat")
    if not args.prompts and args.file is None and sys.stdin.isatty():
        raise InvalidRequestError("no prompt: give one as an argument, on standard input, or a JSONL file with --file")


def _read_items(args: argparse.Namespace) -> list[PromptItem]:
    from octavo.entrypoints.cli.prompts import items_from_jsonl, items_from_texts

    if args.file is not None:
        return items_from_jsonl(args.file)
    if args.prompts:
        return items_from_texts(args.prompts, args.chat, args.system_prompt)
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8: {error}") from error
    return items_from_texts([text.removesuffix("\n")], args.chat, args.system_prompt)


def _stream_one(session: Session, item: PromptItem, common: dict[str, Any], file: TextIO, quiet: bool) -> int:
    from octavo.types.sampling_params import RequestOutputKind
    from octavo.utils.interrupts import deferred_interrupt

    params = session.sampling_params({**common, **item.sampling}, DEFAULT_MAX_TOKENS, RequestOutputKind.DELTA)
    prompt = session.prompt_of(item)
    started = time.monotonic()
    num_tokens = status = 0
    with deferred_interrupt() as interrupt:
        for output in session.stream(prompt, params, interrupt):
            completion = output.outputs[0]
            num_tokens += len(completion.token_ids)
            status = _status_of(completion.finish_reason, item, completion.stop_reason)
            file.write(completion.text)
            file.flush()
        file.write("\n")
        file.flush()
        _report(1, num_tokens, time.monotonic() - started, quiet)
    return status


def _run_many(
    session: Session, items: list[PromptItem], common: dict[str, Any], file: TextIO, as_text: bool, quiet: bool
) -> int:
    started = time.monotonic()
    index_of = _start_all(session, items, common)
    if file is not sys.stdout:
        start_afresh(file)
    finished: dict[int, RequestOutput] = {}
    num_written = num_tokens = status = 0
    for output in session.outputs():
        if not output.finished:
            continue
        index = index_of[output.request_id]
        finished[index] = output
        num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        for completion in output.outputs:
            status = max(status, _status_of(completion.finish_reason, items[index], completion.stop_reason))
        while num_written in finished:  # results leave in the order of the prompts
            _write(file, num_written, items[num_written], finished.pop(num_written), as_text)
            num_written += 1
    _report(len(items), num_tokens, time.monotonic() - started, quiet)
    return status


def _start_all(session: Session, items: list[PromptItem], common: dict[str, Any]) -> dict[str, int]:
    """Add every request before the first step, so that a bad one is reported before anything runs."""
    from octavo.entrypoints.cli.prompts import located
    from octavo.types.sampling_params import RequestOutputKind

    index_of: dict[str, int] = {}
    for index, item in enumerate(items):
        try:
            params = session.sampling_params(
                {**common, **item.sampling}, DEFAULT_MAX_TOKENS, RequestOutputKind.FINAL_ONLY
            )
            index_of[session.start(session.prompt_of(item), params)] = index
        except InvalidRequestError as error:
            session.abort(list(index_of))
            raise located(error, item) from error
    return index_of


def _write(file: TextIO, index: int, item: PromptItem, output: RequestOutput, as_text: bool) -> None:
    if as_text:
        question = item.text if item.messages is None else item.messages[-1].get("content")
        file.write(f"> {question}\n")
        for completion in output.outputs:
            file.write(f"{completion.text.strip()}\n\n")
    else:
        from octavo.entrypoints.cli.records import json_line, result_record

        file.write(json_line(result_record(index, item, output)))
    file.flush()


def _status_of(finish_reason: str | None, item: PromptItem, reason: int | str | None) -> int:
    """Return 1, and say why, when the engine gave a request up."""
    if finish_reason != "error":
        return 0
    print(f"octavo: error: {item.origin}: {reason}", file=sys.stderr)
    return 1


def _report(num_requests: int, num_tokens: int, seconds: float, quiet: bool) -> None:
    if quiet:
        return
    requests = "1 request" if num_requests == 1 else f"{num_requests} requests"
    speed = num_tokens / max(seconds, 1e-9)
    print(f"[{requests}, {num_tokens} tokens in {seconds:.2f} s: {speed:.1f} tokens/s]", file=sys.stderr)
