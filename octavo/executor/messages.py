"""What crosses between an executor and a worker in another process: msgspec structs as msgpack, never pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import LoadConfig, OctavoConfig
from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.loader.resolve import open_checkpoint
from octavo.types.raised_error import RaisedError
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from octavo.utils.imports import import_by_name, name_of_class
from octavo.utils.plain_data import ONLY_PLAIN, encoded

# -- executor to worker ------------------------------------------------------------------------------------------------


class CheckpointData(msgspec.Struct):
    """An opened checkpoint as what it takes to open it again: its file or folder, and config values with overrides."""

    name: str
    path: str
    values: dict[str, Any]
    source: str

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointData:
        return cls(checkpoint.name, str(checkpoint.path), checkpoint.config.values, checkpoint.config.source)

    def open(self, load: LoadConfig) -> Checkpoint:
        """Open it in this process; `load` is the one that it was first opened with."""
        opened = open_checkpoint(str(Path(self.path).absolute()), load)
        return dataclasses.replace(opened, name=self.name, config=HFConfig(self.values, self.source))


class StartWorker(msgspec.Struct):
    """What a worker gets first. Answered, with number 0, by a CallReply or an ErrorReply."""

    config: OctavoConfig
    checkpoint: CheckpointData
    place: WorkerPlace


class RunStep(msgspec.Struct, array_like=True, tag=1):
    """Compute a step.

    samples: sample too, without grammars; else a Sample of the same number follows
    is_ahead: another was under way when this was made, so that whatever that one does is unknown to it
    """

    number: int
    step: SchedulerOutput
    samples: bool
    is_ahead: bool = False


class Sample(msgspec.Struct, array_like=True, tag=2):
    """Sample from the logits of the step of this number."""

    number: int
    grammar: GrammarOutput | None


class CallWorker(msgspec.Struct, array_like=True, tag=3):
    """Call a method of the worker by name."""

    number: int
    method: str
    args: list[Any]
    kwargs: dict[str, Any]


Command = RunStep | Sample | CallWorker

# -- worker to executor ------------------------------------------------------------------------------------------------


class StepReply(msgspec.Struct, array_like=True, tag=1):
    """What the step of this number brought; from the output rank only."""

    number: int
    output: ModelRunnerOutput


class CallReply(msgspec.Struct, array_like=True, tag=2):
    """What a method returned."""

    number: int
    result: Any


class ErrorReply(msgspec.Struct, array_like=True, tag=3):
    """The step, call or start of this number failed; from whichever rank it failed at."""

    number: int
    error: RaisedError


class Doing(msgspec.Struct, array_like=True, tag=4):
    """Where a worker that was asked is in its program."""

    where: str


Reply = StepReply | CallReply | ErrorReply | Doing


def _class_as_name(value: object) -> str:
    if isinstance(value, type):
        return name_of_class(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def _class_from_name(expected: Any, name: object) -> object:
    assert isinstance(name, str), expected
    return import_by_name(name)


# raises TypeError or OverflowError for what is not plain data
encode = msgspec.msgpack.Encoder(enc_hook=_class_as_name).encode
decode_start = msgspec.msgpack.Decoder(StartWorker, dec_hook=_class_from_name).decode
decode_command: Callable[[bytes], Command] = msgspec.msgpack.Decoder(Command).decode
decode_reply: Callable[[bytes], Reply] = msgspec.msgpack.Decoder(Reply).decode


def encode_start(config: OctavoConfig, checkpoint: Checkpoint, place: WorkerPlace) -> bytes:
    """Return a StartWorker's bytes; raises ConfigError for options that cannot leave this process."""
    start = StartWorker(config, CheckpointData.of(checkpoint), place)
    return encoded(encode, start, ConfigError, "the configuration cannot be passed to a worker's process")


def encode_call(number: int, method: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return a CallWorker's bytes; raises UnsupportedError for functions and arguments that are not plain data."""
    if not isinstance(method, str):
        raise UnsupportedError("workers in other processes are called by a method's name, not with a function")
    text = f"{method}: arguments go to the workers' processes and {ONLY_PLAIN}"
    return encoded(encode, CallWorker(number, method, list(args), dict(kwargs)), UnsupportedError, text)
