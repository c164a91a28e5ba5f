"""The socket that a server listens on. Imports little: it is bound before anything that takes time is begun."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys

from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import ConfigError


def bind(args: ServerArgs) -> socket.socket:
    """Return the bound socket, so that a port in use is told before a model is loaded; raises ConfigError."""
    if args.uds is not None:
        return _bind_unix(args.uds)
    try:
        family, _, _, _, address = socket.getaddrinfo(args.host or "0.0.0.0", args.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {args.host}:{args.port}: {error.strerror or error}") from error
    listener.set_inheritable(False)
    return listener


def bind_all(args: ServerArgs, count: int) -> list[socket.socket]:
    """Return a bound socket for each of `count` processes, all of one address; raises ConfigError.

    The system divides connections evenly among them, and one whose process is replaced keeps those that wait there.
    """
    first = bind(args)
    if not (count > 1 and args.uds is None and hasattr(socket, "SO_REUSEPORT") and sys.platform == "linux"):
        return [first, *(first.dup() for _ in range(count - 1))]  # whoever is first takes a connection
    listeners = [first]
    # only now, so that a port that another server has is an error, whatever that one allows
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for _ in range(count - 1):
        listener = socket.socket(first.family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(first.getsockname())
        listeners.append(listener)
    return listeners


def url_of(args: ServerArgs, listener: socket.socket) -> str:
    """Return where a server can be reached."""
    if args.uds is not None:
        return f"unix:{args.uds}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if args.ssl_certfile else 'http'}://{shown}:{port}"


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode):
                _refuse_if_alive(path)
                os.unlink(path)  # of a server that was killed
        listener.bind(path)
        os.chmod(path, 0o660)
    except OSError as error:
        raise ConfigError(f"cannot listen on the unix socket {path}: {error.strerror or error}") from error
    return listener


def _refuse_if_alive(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise ConfigError(f"another server listens on the unix socket {path}")
