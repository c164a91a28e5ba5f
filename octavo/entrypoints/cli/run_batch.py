"""Answer a file of requests in OpenAI's batch format, a JSON object a line, without a server.

A line is {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}; completions, embeddings,
scores and ranks have the urls of the server.
The output has a line for each, in the same order; a bad line gets an error and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from octavo.config.engine_args import EngineArgs
from octavo.config.option_flags import add_option_arguments, add_unbuilt_flags, given_options
from octavo.entrypoints.cli.files import is_same_file, open_results, refuse_urls, start_afresh
from octavo.entrypoints.cli.main import Parser
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.entrypoints.openai.batch import BatchCounts

USAGE = "octavo run-batch -i FILE -o FILE [--model MODEL] [options]"
_SERVER_OPTIONS = {
    *("chat_template", "chat_template_content_format", "default_chat_template_kwargs", "response_role"),
    *("trust_request_chat_template", "return_tokens_as_token_ids", "enable_prompt_tokens_details", "max_stop_strings"),
    *("max_prompts_per_request", "max_sequences_per_request", "tool_call_parser", "tool_parser_plugin"),
    *("enable_auto_tool_choice", "tool_strict_level", "exclude_tools_when_tool_choice_none"),
}
_OTHERS = {option.name for option in dataclasses.fields(ServerArgs)} - _SERVER_OPTIONS
_LEAST_IN_FLIGHT = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help='requests; "-": standard input')
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help='results; "-": standard output')
    add_option_arguments(parser, "requests", "how they are understood", ServerArgs, _OTHERS)
    add_option_arguments(parser, "engine", "what is not given is chosen by Octavo", EngineArgs)
    add_unbuilt_flags(parser, EngineArgs)
    if isinstance(parser, Parser):
        parser.folded_groups.add("engine")


def run(args: argparse.Namespace) -> int:
    from octavo.entrypoints.event_loop import run as run_in_loop
    from octavo.entrypoints.openai.launch import check_parsers, read_chat_template

    given = vars(args)
    refuse_urls(args.input_file, args.output_file)
    engine_args = EngineArgs.from_kwargs(**given_options(given, EngineArgs))
    # every line may wait: the file is the queue
    server_args = ServerArgs.from_kwargs(**given_options(given, ServerArgs, _OTHERS), max_num_queued_reqs=0)
    chat_template = read_chat_template(server_args.chat_template)
    check_parsers(engine_args, server_args)
    if is_same_file(args.input_file, args.output_file):
        raise InvalidRequestError(f"--output-file would overwrite the requests in {args.input_file}; name another file")
    with contextlib.ExitStack() as stack:  # both before a model is loaded
        from_file = args.input_file != "-"
        lines = stack.enter_context(Path(args.input_file).open("rb")) if from_file else sys.stdin.buffer
        output = stack.enter_context(open_results(args.output_file, sys.stdout.buffer, mode="ab"))
        counts = run_in_loop(_answer_all(engine_args, server_args, chat_template, lines, output))
    noun = "request" if counts.completed == 1 else "requests"
    print(f"[{counts.completed} {noun} answered, {counts.failed} failed]", file=sys.stderr)
    return 0


async def _answer_all(
    engine_args: EngineArgs, server_args: ServerArgs, chat_template: str | None, lines: BinaryIO, output: BinaryIO
) -> BatchCounts:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.openai.batch import run_batch
    from octavo.entrypoints.openai.state import ServerState

    def write(line: bytes) -> None:
        output.write(line)
        output.flush()

    engine = AsyncLLM.from_engine_args(engine_args)
    server = ServerState(engine, server_args, chat_template=chat_template)
    if output is not sys.stdout.buffer:
        start_afresh(output)
    try:
        max_in_flight = max(2 * engine.config.max_running_sequences, _LEAST_IN_FLIGHT)
        return await run_batch(server, lines, write, max_in_flight)
    finally:
        server.close()
        engine.shutdown()
