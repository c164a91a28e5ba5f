"""`octavo COMMAND …`: finds the command, runs it, and turns errors into one line and an exit status.

Exit status: 0 done, 1 failed, 2 wrong usage or invalid input, 130 interrupted, 141 the reader of our output went away,
143 ended by SIGTERM while a server started.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

from octavo import envs
from octavo.errors import ConfigError, InvalidRequestError, OctavoError, UnsupportedError
from octavo.utils.names import closest_names


class Command(Protocol):
    """What a command's module offers; its docstring is the help text."""

    USAGE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit status."""


@dataclass(frozen=True)
class CommandEntry:
    """Where a command lives, and its line in the help."""

    module: str
    summary: str


COMMANDS: dict[str, CommandEntry] = {
    "generate": CommandEntry("octavo.entrypoints.cli.generate", "complete prompts: text for one, JSONL for many"),
    "chat": CommandEntry("octavo.entrypoints.cli.chat", "talk to a model in the terminal"),
    "complete": CommandEntry("octavo.entrypoints.cli.complete", "continue texts on a server"),
    "serve": CommandEntry("octavo.entrypoints.cli.serve", "serve a model over HTTP, with OpenAI's API"),
    "run-batch": CommandEntry("octavo.entrypoints.cli.run_batch", "answer a file of requests in OpenAI's batch format"),
    "bench latency": CommandEntry("octavo.entrypoints.bench.latency", "time one batch of requests, offline"),
    "bench throughput": CommandEntry("octavo.entrypoints.bench.throughput", "time many requests, offline"),
    "bench serve": CommandEntry("octavo.entrypoints.bench.serve", "measure a server under load"),
    "bench startup": CommandEntry("octavo.entrypoints.bench.startup", "time the start of an engine"),
    "models": CommandEntry("octavo.entrypoints.cli.models", "list and fetch the models of the catalog"),
    "collect-env": CommandEntry("octavo.entrypoints.cli.collect_env", "describe this machine and installation"),
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and whose long groups are folded: --help=GROUP or --help=all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, add_help=False)
        self.folded_groups: set[str] = set()  # titles
        self.add_argument(
            "-h",
            "--help",
            action=_Help,
            nargs="?",
            metavar="WORD",
            help="show this help; WORD: all, a group, or a part of a flag's name",
        )

    def help_text(self, wanted: str | None) -> str:
        """Return the help: all that is not folded, everything ("all"), one group, or the flags with a word in them."""
        groups = {group.title or "": group for group in self._action_groups}
        if wanted is not None and wanted != "all" and wanted not in groups:
            return self._help_on_flags(wanted, list(groups))
        shown = {
            title: group
            for title, group in groups.items()
            if wanted in ("all", title) or (wanted is None and title not in self.folded_groups)
        }
        formatter = self._get_formatter()
        if wanted in (None, "all"):
            formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
            formatter.add_text(self.description)
        for title, group in shown.items():
            formatter.start_section(title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        folded = sorted(groups.keys() - shown.keys()) if wanted is None else []
        formatter.add_text(self.epilog if not folded else f"more flags: --help={' or --help='.join([*folded, 'all'])}")
        return formatter.format_help()

    def _help_on_flags(self, word: str, titles: list[str]) -> str:
        """Return the help on flags whose names contain a word, dashes or underscores alike."""
        part = word.lstrip("-").replace("_", "-")
        told = [action for action in self._actions if action.help != argparse.SUPPRESS]
        found = [action for action in told if any(part in option for option in action.option_strings)]
        if not part or not found:
            self.error(f"no group is called {word!r} and no flag contains it; the groups are all, {', '.join(titles)}")
        formatter = self._get_formatter()
        formatter.add_arguments(found)
        return formatter.format_help()

    def format_help(self) -> str:
        return self.help_text(None)

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments; one that is not known is an error that names the closest known option."""
        args, unknown = self.parse_known_intermixed_args(arguments)
        self.refuse(unknown)
        return args

    def refuse(self, unknown: Sequence[str], source: str = "") -> None:
        """End with an error if there are arguments that are not known. source: where they stand, ": " behind it"""
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            names = [argument.partition("=")[0] for argument in unknown if argument[:1] == "-"]
            hints = dict.fromkeys(_hint(name, known) for name in names)
            self.error(f"{source}unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "is a switch (in a file: true or false), got")
        self.exit(2, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Allow --temp for --temperature, but not -t for -tp, which means threads elsewhere."""
        return super()._get_option_tuples(option_string) if option_string.startswith("--") else []


def _hint(name: str, known: Sequence[str]) -> str:
    whole, dot, _ = name.partition(".")
    if dot and whole in known:
        return f"; give {whole} a JSON object"
    from octavo.config.engine_args import FORMER_OPTIONS

    former = _ELSEWHERE.get(name) or FORMER_OPTIONS.get(name[2:].replace("-", "_"))
    return f"; {former}" if former else closest_names(name, known)


# What users of llama.cpp look for, and whose place is another one in Python.
_ELSEWHERE = {
    "--guided-decoding-backend": "use --structured-outputs-config '{\"backend\": …}'",
    "--rope-scaling": "use --hf-overrides '{\"rope_parameters\": …}'",
    "--rope-theta": "use --hf-overrides '{\"rope_parameters\": …}'",
    "--override-pooler-config": "use --pooler-config",
    "--speculative-model": "use --speculative-config",
    "--num-speculative-tokens": "use --speculative-config",
    "--ctx-size": "use --max-model-len",
    "-c": "use --max-model-len",
    "-hf": "name the model ORG/MODEL:QUANT",
    "-m": "use --model",
    "-n": "use --max-tokens, or --n for several answers",
    "-ngl": "leave it out: models run on the CPU",
    "-p": "give the prompt without a flag",
    "-t": "set OCTAVO_NUM_THREADS",
    "--threads": "set OCTAVO_NUM_THREADS",
    "-np": "use --max-num-seqs",
    "--parallel": "use --max-num-seqs",
}


class _Help(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        print(parser.help_text(values), end="")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; argparse exits by itself on --help and usage errors."""
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    num_words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    name, rest = " ".join(arguments[:num_words]), dashes_in_option_names(arguments[num_words:])
    if name not in COMMANDS:
        return _without_command(arguments)
    command = cast(Command, importlib.import_module(COMMANDS[name].module))
    parser = Parser(
        prog=f"octavo {name}",
        usage=command.USAGE,
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    return _run(command, parser.parse_all(rest))


def dashes_in_option_names(arguments: Sequence[str]) -> list[str]:
    """Return arguments with --max_model_len spelt --max-model-len (both are vLLM's style); values stay as they are."""
    result = list(arguments)
    for index, argument in enumerate(result):
        if argument == "--":
            break
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            result[index] = name.replace("_", "-") + equals + value
    return result


def _without_command(arguments: Sequence[str]) -> int:
    """Answer a command line that names no command, or only the first word of some."""
    family = [name for name in COMMANDS if arguments and name.startswith(f"{arguments[0]} ")]
    shown = family or list(COMMANDS)
    width = max(len(name) for name in shown)
    lines = "\n".join(f"  {name:<{width}}  {COMMANDS[name].summary}" for name in shown)
    parser = Parser(
        prog="octavo",
        usage=f"octavo {arguments[0]} COMMAND …" if family else "octavo [--help] [--version] COMMAND …",
        description="Run language models on this machine.",
        epilog=f"commands:\n{lines}\n\n`octavo COMMAND --help` explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args(arguments)
    if args.version:
        print(_version())
        return 0
    if args.command is None or (family and len(arguments) == 1):
        parser.print_help(sys.stderr)
    else:
        given = " ".join(arguments[:2]) if family else args.command
        hint = closest_names(given, shown) or f"; choose from {', '.join(shown)}"
        print(f"octavo: error: unknown command {given!r}{hint}", file=sys.stderr)
    return 2


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("octavo")
    except PackageNotFoundError:
        return "unknown (octavo is not installed)"


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        status = command.run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_output()
        return 141
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except (OctavoError, OSError) as error:
        if envs.log_level() == "DEBUG":
            raise
        print(f"octavo: error: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, (ConfigError, InvalidRequestError, UnsupportedError)) else 1


def _prepare_streams() -> None:
    """Open standard streams that were closed as empty ones, for Python leaves None in their place; let others be UTF-8.

    Models write any character, and JSON is UTF-8: under a locale of ASCII an answer must not end the program.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open to the end)
        elif isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")


def _discard_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
