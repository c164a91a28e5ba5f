"""Directories of processes: what others left behind goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from octavo.distributed import rendezvous
from octavo.distributed.rendezvous import Rendezvous
from octavo.engine.meeting_place import MeetingPlace
from octavo.utils.private_directory import PrivateDirectory

LONG_AGO = 1_000_000_000


def make_old(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.mark.parametrize("kind", [MeetingPlace, Rendezvous])
def test_directories_of_dead_owners_are_removed_and_those_in_use_are_not(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rendezvous, "_MEMORY_FOLDER", str(tmp_path))
    code = (
        "import os; from octavo.utils.private_directory import PrivateDirectory as D; "
        f"print(D({str(tmp_path)!r}).path, flush=True); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    left_behind, in_use = Path(result.stdout.strip()), kind()
    assert left_behind.exists(), result.stderr
    kind().remove()
    assert left_behind.exists()  # young: its owner may be about to lock it
    strange = tmp_path / "octavo-notes"  # of somebody else
    strange.mkdir()
    for path in (left_behind, in_use.path, strange):
        make_old(path)
    kind().remove()
    assert not left_behind.exists()
    assert in_use.path.parent == tmp_path and in_use.path.exists() and strange.exists()
    in_use.remove()


def test_links_are_not_followed(tmp_path, tmp_path_factory):
    target = tmp_path_factory.mktemp("elsewhere")
    (target / "lock").touch()
    make_old(target)
    (tmp_path / "octavo-link").symlink_to(target)
    PrivateDirectory(str(tmp_path)).remove()
    assert (target / "lock").exists()
