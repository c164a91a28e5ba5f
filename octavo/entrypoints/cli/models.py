"""List the catalog of models that Octavo knows by name, fetch them, and tell where they lie.

  list        the models, their sizes, and which are here
  pull NAME…  fetch models that are not here yet
  path NAME   print where a model lies; fails when it was not fetched

Any other model works too: a folder, a .gguf file, or a hub id (see `octavo generate --help`, --model).
"""

from __future__ import annotations

import argparse
import sys

from octavo.errors import InvalidRequestError, ModelNotFoundError

USAGE = "octavo models [list | pull NAME… | path NAME]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=("list", "pull", "path"), help="default: list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of the catalog")


def run(args: argparse.Namespace) -> int:
    if (args.action == "list") != (not args.names) or (args.action == "path" and len(args.names) != 1):
        raise InvalidRequestError(f"usage: {USAGE}; got {args.action} with {len(args.names)} names")
    if args.action == "list":
        _list()
    elif args.action == "pull":
        _pull(args.names)
    else:
        _path(args.names[0])
    return 0


def _list() -> None:
    from octavo.loader import catalog

    models = catalog.list_models()
    width = max(len(model.name) for model in models)
    for model in models:
        here = "here" if catalog.local_path(model.name) is not None else "-"
        print(f"{model.name:<{width}}  {model.size_bytes / 1e6:7.0f} MB  {here:<4}  {model.description}")


def _pull(names: list[str]) -> None:
    from octavo.loader import catalog

    for name in names:
        print(f"{name}: {catalog.pull(name, _tell)}", flush=True)


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def _path(name: str) -> None:
    from octavo.loader import catalog

    path = catalog.local_path(name)
    if path is None:
        raise ModelNotFoundError(f"model {name!r} is not here; fetch it with `octavo models pull {name}`")
    print(path)
