"""An exception as data, to be raised again in another process."""

from __future__ import annotations

import msgspec

from octavo import errors
from octavo.errors import EngineDeadError, InvalidRequestError, OctavoError


class RaisedError(msgspec.Struct, array_like=True):
    """The name of an exception's class, its text, and the parameter of an InvalidRequestError."""

    kind: str
    text: str
    parameter: str | None = None


def error_as_data(error: BaseException) -> RaisedError:
    """Return what is needed to raise the error in another process."""
    parameter = error.parameter if isinstance(error, InvalidRequestError) else None
    text = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
    return RaisedError(type(error).__name__, text, parameter)


def failed_call_as_data(error: Exception, method: str, where: str) -> RaisedError:
    """Return the error of a method that was called: what is none of ours ends the call and nothing else."""
    raised = error_as_data(error)
    if isinstance(error, OctavoError):
        return raised
    return RaisedError("RequestFailedError", f"{method} failed {where}: {raised.text}")


def error_from_data(raised: RaisedError, otherwise: type[OctavoError] = EngineDeadError) -> OctavoError:
    """Return one of our own errors as the class it was; anything else as an `otherwise` that names it."""
    kind = getattr(errors, raised.kind, None)
    if kind is InvalidRequestError:
        return InvalidRequestError(raised.text, raised.parameter)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind(raised.text)
    return otherwise(raised.text)
