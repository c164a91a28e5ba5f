"""Talk to a model in the terminal, or feed it messages from a pipe, one per line.

The conversation so far is part of every prompt. Ctrl-C stops an answer, Ctrl-D leaves. Commands:
  /clear          forget the conversation
  /system TEXT    set the system message and forget the conversation
  /exit           leave
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from octavo.entrypoints.cli.arguments import (
    add_engine_arguments,
    add_output_arguments,
    add_sampling_arguments,
    given_sampling_options,
)
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.entrypoints.cli.prompts import Message
    from octavo.entrypoints.cli.session import Session
    from octavo.types.outputs import CompletionOutput

USAGE = "octavo chat [options]"
DEFAULT_MAX_TOKENS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system-prompt", metavar="TEXT", help="system message of the conversation")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer and leave")
    add_output_arguments(parser)
    add_sampling_arguments(parser, DEFAULT_MAX_TOKENS)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from octavo.entrypoints.cli.prompts import check_sampling
    from octavo.entrypoints.cli.session import Session

    sampling = given_sampling_options(args)
    if sampling.get("n", 1) != 1:
        raise InvalidRequestError(f"n must be 1 in a chat, got {sampling['n']}", "n")
    check_sampling([], sampling)
    conversation = Conversation(Session.from_arguments(args), args.system_prompt, sampling, args.quiet)
    if args.quick is not None:
        conversation.answer(args.quick)
        return 0
    return _converse(conversation)


class Conversation:
    """The messages so far, and how to add one more."""

    def __init__(self, session: Session, system_prompt: str | None, sampling: dict[str, Any], quiet: bool) -> None:
        self.messages: list[Message] = []
        self._session = session
        self._sampling = sampling
        self._quiet = quiet
        self.restart(system_prompt)

    def restart(self, system_prompt: str | None = None) -> None:
        """Forget the conversation; a system prompt replaces the one before."""
        kept = [message for message in self.messages[:1] if message["role"] == "system"]
        self.messages = [{"role": "system", "content": system_prompt}] if system_prompt else kept

    def answer(self, text: str) -> None:
        """Print the answer to one message as it is generated. A refused message leaves the conversation as it was."""
        from octavo.types.sampling_params import RequestOutputKind
        from octavo.utils.interrupts import deferred_interrupt

        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        params = self._session.sampling_params(self._sampling, DEFAULT_MAX_TOKENS, RequestOutputKind.DELTA)
        prompt = self._session.render(messages)
        pieces: list[str] = []
        with contextlib.suppress(KeyboardInterrupt), deferred_interrupt() as interrupt:
            started = time.monotonic()
            num_tokens = 0
            for output in self._session.stream(prompt, params, interrupt):
                num_tokens += self._show(output.outputs[0], pieces)
            print(flush=True)
            self._report(num_tokens, time.monotonic() - started, interrupt.requested)
        self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def _show(self, completion: CompletionOutput, pieces: list[str]) -> int:
        """Print a piece of the answer, keep it, and return how many tokens it has."""
        pieces.append(completion.text)
        print(completion.text, end="", flush=True)
        if completion.finish_reason == "error":
            print(f"octavo: error: {completion.stop_reason}", file=sys.stderr)
        return len(completion.token_ids)

    def _report(self, num_tokens: int, seconds: float, was_stopped: bool) -> None:
        if not self._quiet:
            stopped = ", stopped" if was_stopped else ""
            print(f"[{num_tokens} tokens, {num_tokens / max(seconds, 1e-9):.1f} tokens/s{stopped}]", file=sys.stderr)


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
        print("octavo: error: commands are /clear, /system TEXT and /exit", file=sys.stderr)
    return False
