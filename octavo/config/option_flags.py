"""Command-line flags from a dataclass of options: their names, types and help texts are the fields' own.

A field's metadata says help, choices and in_cli (see engine_args). Only flags that were given appear in the parsed
namespace, so that defaults live in one place, behind the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from octavo.utils.numbers import whole_number


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; argparse reports the ValueError's text."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r} ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value


def text_list(text: str) -> list[str]:
    """Parse a JSON list of texts, or one text."""
    if not text.startswith("["):
        return [text]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a text or a JSON list of texts, got {text!r} ({error})") from error
    if not all(isinstance(item, str) for item in value):
        raise argparse.ArgumentTypeError(f"expected a JSON list of texts, got {text!r}")
    return typing.cast("list[str]", value)


def token_ids(text: str) -> list[int]:
    """Parse token ids separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected token ids separated by commas, got {text!r}") from error


def number(text: str) -> int:
    """Parse a whole number, "500M" style too."""
    try:
        return whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole_number_or_text(text: str) -> int | str:
    """Parse an option such as max_model_len, which is a number or a word ("8k", "auto")."""
    try:
        return int(text)
    except ValueError:
        return text


# vLLM's
_SHORT_FLAGS: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "data_parallel_rank": ("-dpn",),
    "data_parallel_start_rank": ("-dpr",),
    "data_parallel_size_local": ("-dpl",),
    "data_parallel_address": ("-dpa",),
    "data_parallel_rpc_port": ("-dpp",),
    "data_parallel_backend": ("-dpb",),
    "data_parallel_hybrid_lb": ("-dph",),
    "data_parallel_external_lb": ("-dpe",),
}
_METAVARS: dict[Callable[[str], Any], str] = {
    int: "N",
    number: "N",
    float: "X",
    str: "TEXT",
    token_ids: "IDS",
    json_object: "JSON",
    text_list: "TEXT",
    whole_number_or_text: "N",
}


def add_option_arguments(
    parser: argparse.ArgumentParser, title: str, about: str, options: type[Any], without: Collection[str] = ()
) -> None:
    """Add a group with a flag for each field of an options dataclass that is meant for the command line."""
    group = parser.add_argument_group(title, about)
    hints = typing.get_type_hints(options)
    for field in _fields(options, without):
        text = field.metadata["help"]
        if isinstance(field.default, (str, int, float)) and not isinstance(field.default, bool):
            text += f" (default: {field.default})"
        parse = _parser_of(hints[field.name])
        action = "extend" if parse is text_list else None
        add_flag(group, field.name, parse, text, action, choices=field.metadata["choices"])


def given_options(given: Mapping[str, Any], options: type[Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of a dataclass that were given, by field name; those that are not built too."""
    names = {*(field.name for field in _fields(options, without)), *options.unbuilt_options()} - {*without}
    return {name: value for name, value in given.items() if name in names}


def add_unbuilt_flags(parser: argparse.ArgumentParser, *options: type[Any]) -> None:
    """Know the flags of options that are not built, so that they are refused with a reason, or accepted where neutral.

    To be called when the parser has all others.
    """
    known = {action.dest for action in parser._actions}
    unbuilt = {name: entry for one in options for name, entry in one.unbuilt_options().items()}
    for name, (neutral, _) in unbuilt.items():
        if name in known:
            continue
        is_switch = any(isinstance(value, bool) for value in neutral)
        kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if is_switch else {"type": _any_value}
        parser.add_argument(
            "--" + name.replace("_", "-"), dest=name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **kind
        )


def _any_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fields(options: type[Any], without: Collection[str]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(options) if field.metadata["in_cli"] and field.name not in without]


def add_flag(
    group: argparse._ArgumentGroup,
    name: str,
    parse: Callable[[str], Any] | None,
    text: str,
    action: str | None = None,
    choices: typing.Sequence[str] | None = None,
) -> None:
    """Add the flag of one option; parse None: an on/off switch."""
    flags = ["--" + name.replace("_", "-"), *_SHORT_FLAGS.get(name, ())]
    text = text.replace("%", "%%")
    if parse is None:
        group.add_argument(
            *flags, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        return
    group.add_argument(
        *flags,
        dest=name,
        type=parse,
        action=action or "store",
        choices=choices,
        metavar=None if choices else _METAVARS[parse],
        default=argparse.SUPPRESS,
        help=text,
    )


def _parser_of(hint: Any) -> Callable[[str], Any] | None:
    """Return what turns a flag's text into a field of this type; None for a switch."""
    members = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    members -= {type(None), type[Any]}  # a class has no flag but its name
    if len(members) > 1:
        return whole_number_or_text
    member = members.pop()
    if member is bool:
        return None
    if typing.get_origin(member) in (dict, list):
        return json_object if typing.get_origin(member) is dict else text_list
    if member is int:
        return number
    return typing.cast("Callable[[str], Any]", member)
