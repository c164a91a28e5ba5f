"""The same collectives over torch.distributed, between processes that could be on several machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.distributed.place import WorkerPlace
from octavo.distributed.torch_group import join_world
from octavo.errors import ConfigError

_RANK = """
import json, os, sys, time
import numpy as np
from octavo.distributed.connect import connect
from octavo.distributed.place import WorkerPlace
from octavo.errors import PeerLostError

rank, tp_size, pp_size, address, dies = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
groups = connect(WorkerPlace(rank=rank, tp_size=tp_size, pp_size=pp_size, address=address, timeout_s=20))
tensor, pipeline = groups.tensor, groups.pipeline
seen = {}
if tensor.size > 1:
    array = np.full(5, 10.0 ** tensor.rank, np.float32)
    tensor.all_reduce(array)
    part = np.full((2, tensor.rank + 1), tensor.rank, np.float32)
    seen["sum"] = array.tolist()
    seen["gathered"] = tensor.all_gather(part, [r + 1 for r in range(tensor.size)]).tolist()
    array = np.full(3, tensor.rank, np.float32)
    tensor.broadcast(array, 1)
    seen["broadcast"] = array.tolist()
    tensor.barrier()
if pipeline.size > 1:
    for number in range(3):
        array = np.full(200_000, number, np.float32)
        if pipeline.rank > 0:
            pipeline.receive(array)
        if pipeline.rank + 1 < pipeline.size:
            pipeline.send(array + 1)
    seen["received"] = [float(array[0]), float(array[-1])]
if dies == str(rank):
    os.kill(os.getpid(), 9)
if dies:
    begin = time.monotonic()
    try:
        while True:
            tensor.barrier()
    except PeerLostError as error:
        seen["lost"] = str(error)[:60]
        seen["soon"] = time.monotonic() - begin < 2
groups.close()
print(json.dumps(seen), flush=True)
os._exit(0)
"""


def run_ranks(tp_size: int, pp_size: int, dies: str = "") -> list[tuple[int, dict]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(tp_size), str(pp_size), address, dies],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(tp_size * pp_size)
    ]
    results = []
    for child in children:
        output, _ = child.communicate(timeout=60)
        results.append((child.returncode, json.loads(output) if output else {}))
    return results


def test_sums_joined_columns_and_broadcasts() -> None:
    for status, seen in run_ranks(2, 1):
        assert status == 0
        assert seen["sum"] == [11.0] * 5
        assert seen["gathered"] == [[0, 1, 1]] * 2
        assert seen["broadcast"] == [1.0] * 3


def test_stages_pass_arrays_on() -> None:
    (_, first), (_, second) = run_ranks(1, 2)
    assert second["received"] == [3.0, 3.0] and first["received"] == [2.0, 2.0]


def test_a_killed_rank_is_named() -> None:
    (status, seen), (killed, _) = run_ranks(2, 1, dies="1")
    assert killed == -signal.SIGKILL and status == 0
    assert seen["lost"].startswith("rank 1 of 2 in the group tp0 is gone") and seen["soon"]


def test_what_is_missing_is_said() -> None:
    from octavo.distributed import torch_group
    from octavo.errors import ConfigError

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch.distributed", None)
        with pytest.raises(ConfigError, match=r"install octavo\[distributed\]"):
            torch_group._torch_distributed()


def test_a_world_for_gpus_alone_is_refused_with_the_way_out(monkeypatch):
    torch = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(torch, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "get_world_size", lambda: 2)
    place = WorkerPlace(tp_size=2, address="tcp://127.0.0.1:1")
    monkeypatch.setattr(torch, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ConfigError, match=r"'cuda:nccl', which carry arrays of GPUs alone.*'cpu:gloo,cuda:nccl'"):
        join_world(place)
    monkeypatch.setattr(torch, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    assert not join_world(place)
