"""The exception tree. Every error that a user can cause or must handle is one of these.

OctavoError
├── InvalidRequestError (ValueError)     one request is wrong; nothing else is affected
│   └── UnknownParameterError (TypeError)  it has a parameter that there is not, as Python's own TypeError says it
├── ConfigError (ValueError)             the engine cannot start with these options on this machine
├── ModelNotFoundError (FileNotFoundError)  a model name or path resolves to nothing
├── CheckpointError (ValueError)         a model's files are missing, corrupt or contradict each other
├── UnsupportedError (NotImplementedError)  known to vLLM or the format, but not built here
├── RequestFailedError (RuntimeError)    a request was accepted and then failed (NaN logits, ...)
└── EngineDeadError (RuntimeError)       the engine cannot serve any request any more
    └── PeerLostError                    a process that computes the same model is gone or hangs

Messages name what was expected, what came, and the way out.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of all errors raised on purpose by Octavo."""


class InvalidRequestError(OctavoError, ValueError):
    """A request's prompt or parameters are invalid. `parameter` names the field, if one is to blame."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnknownParameterError(InvalidRequestError, TypeError):
    """A parameter has a name that is not known, or none. Also a TypeError, which Python's own classes raise then."""


class ConfigError(OctavoError, ValueError):
    """The engine's options are invalid or cannot be satisfied on this machine."""


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """A model name or path resolves to nothing."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CheckpointError(OctavoError, ValueError):
    """A model's files are missing, corrupt, or contradict each other."""


class UnsupportedError(OctavoError, NotImplementedError):
    """A known feature, option or format that this version does not have."""


class RequestFailedError(OctavoError, RuntimeError):
    """An accepted request failed while it ran; other requests are unaffected."""


class OverloadedError(OctavoError, RuntimeError):
    """Too much work waits already; the same request may pass later."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine has died and serves no request any more."""


class PeerLostError(EngineDeadError):
    """A process that computes the same model has died, hangs or gave up: nothing can be computed without it.

    signal: that ended it, if one did and anybody knows
    """

    def __init__(self, message: str, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
