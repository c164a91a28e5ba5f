"""Talk to a model in the terminal, or feed it messages from a pipe, one per line.

The model is loaded here, or, with --url, a server answers. The conversation so far is part of every prompt.
Ctrl-C stops an answer, Ctrl-D leaves. Commands:
  /clear          forget the conversation
  /system TEXT    set the system message and forget the conversation
  /exit           leave
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from octavo.entrypoints.cli.answering import Answering, report_speed, show
from octavo.entrypoints.cli.arguments import (
    add_engine_arguments,
    add_output_arguments,
    add_sampling_arguments,
    given_engine_options,
    given_sampling_options,
)
from octavo.entrypoints.cli.remote import RemoteServer, add_server_arguments
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.entrypoints.cli.prompts import Message

USAGE = "octavo chat [options]"
DEFAULT_MAX_TOKENS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message of the conversation")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer and leave")
    add_output_arguments(parser)
    add_server_arguments(parser, default_url=None)
    add_sampling_arguments(parser, DEFAULT_MAX_TOKENS)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from octavo.entrypoints.cli.prompts import check_sampling

    sampling = given_sampling_options(args)
    if sampling.get("n", 1) != 1:
        raise InvalidRequestError(f"n must be 1 in a chat, got {sampling['n']}", "n")
    check_sampling([], sampling)
    conversation = Conversation(_answering(args, sampling), args.system_prompt, args.quiet)
    if args.quick is not None:
        conversation.answer(args.quick)
        return 0
    return _converse(conversation)


def _answering(args: argparse.Namespace, sampling: dict[str, Any]) -> Answering:
    if args.url is not None:
        given = given_engine_options(args)
        if given:
            raise InvalidRequestError(
                f"--{next(iter(given)).replace('_', '-')} is for a model loaded here, not for --url"
            )
        server = RemoteServer.from_arguments(args)
        return lambda messages, interrupt: server.stream_chat(messages, sampling, interrupt)
    from octavo.entrypoints.cli.session import Session

    session = Session.from_arguments(args, needs_template=True)
    return lambda messages, interrupt: session.stream_chat(messages, sampling, DEFAULT_MAX_TOKENS, interrupt)


class Conversation:
    """The messages so far, and how to add one more."""

    def __init__(self, answering: Answering, system_prompt: str | None, quiet: bool) -> None:
        self.messages: list[Message] = []
        self._answering = answering
        self._quiet = quiet
        self.restart(system_prompt)

    def restart(self, system_prompt: str | None = None) -> None:
        """Forget the conversation; a system prompt replaces the one before."""
        kept = [message for message in self.messages[:1] if message["role"] == "system"]
        self.messages = [{"role": "system", "content": system_prompt}] if system_prompt else kept

    def answer(self, text: str) -> None:
        """Print the answer to one message as it is generated. A refused message leaves the conversation as it was.

        When the conversation has become too long for the model, its oldest turns are forgotten.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        num_forgotten = 0
        while True:
            try:
                answer = self._print_answer(messages, num_forgotten)
            except InvalidRequestError as error:
                shorter = _without_oldest_turn(messages)
                if shorter is None or not _says_that_context_is_full(error):
                    raise
                num_forgotten += len(messages) - len(shorter)
                messages = shorter
            else:
                self.messages = [*messages, {"role": "assistant", "content": answer}]
                return

    def _print_answer(self, messages: list[Message], num_forgotten: int) -> str:
        """Print an answer and how fast it came; return it. Raises InvalidRequestError before anything is printed."""
        from octavo.utils.interrupts import deferred_interrupt

        pieces: list[str] = []
        with contextlib.suppress(KeyboardInterrupt), deferred_interrupt() as interrupt:
            started = time.monotonic()
            num_tokens = 0
            for piece in self._answering(messages, interrupt):
                if not pieces and num_forgotten:
                    _tell_of_forgotten(num_forgotten)
                pieces.append(piece.text)
                num_tokens += piece.num_tokens
                show(piece)
            print(flush=True)
            self._report(num_tokens, time.monotonic() - started, interrupt.requested)
        return "".join(pieces)

    def _report(self, num_tokens: int, seconds: float, was_stopped: bool) -> None:
        if not self._quiet:
            report_speed(num_tokens, seconds, was_stopped)


def _without_oldest_turn(messages: list[Message]) -> list[Message] | None:
    """Return the messages without the first question and what follows it; None if it is the only one."""
    questions = [index for index, message in enumerate(messages) if message["role"] == "user"]
    return [*messages[: questions[0]], *messages[questions[1] :]] if len(questions) > 1 else None


def _says_that_context_is_full(error: InvalidRequestError) -> bool:
    """Read the message, ours or another server's: it is all that a server tells."""
    return re.search(r"max_model_len|context.length|context.window", str(error), re.IGNORECASE) is not None


def _tell_of_forgotten(count: int) -> None:
    print(f"[the conversation is too long for the model: its oldest {count} messages are forgotten]", file=sys.stderr)


def _converse(conversation: Conversation) -> int:
    interactive = _is_interactive()
    if interactive:
        with contextlib.suppress(ImportError):  # not in every build of Python
            import readline  # noqa: F401  (gives input() line editing and history)

        print("Type a message; /clear, /system TEXT and /exit are commands.", file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if not interactive:
                raise
            print(file=sys.stderr)
            continue
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"standard input is not UTF-8: {error}") from error
        if line.startswith("/"):
            if _command(conversation, line):
                return 0
        elif line:
            _answer_or_explain(conversation, line, interactive)


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _answer_or_explain(conversation: Conversation, line: str, interactive: bool) -> None:
    """Answer; a person at a terminal sees why a message was refused and goes on, a pipe fails."""
    if not interactive:
        print(f"> {line}")
    try:
        conversation.answer(line)
    except InvalidRequestError as error:
        if not interactive:
            raise
        print(f"octavo: error: {error} (/clear starts a new conversation)", file=sys.stderr)


def _command(conversation: Conversation, line: str) -> bool:
    """Carry out a slash command; return whether to leave."""
    name, _, rest = line.partition(" ")
    if name == "/exit":
        return True
    if name == "/clear":
        conversation.restart()
    elif name == "/system" and rest.strip():
        conversation.messages = []
        conversation.restart(rest.strip())
    else:
        prefix = "" if name == "/help" else "octavo: error: "
        print(f"{prefix}commands are /clear, /system TEXT and /exit", file=sys.stderr)
    return False
