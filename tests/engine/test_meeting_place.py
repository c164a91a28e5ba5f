"""The directory of a front end and its core: private, gone at the end, and what others left behind goes too."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from octavo.engine.meeting_place import MeetingPlace

LONG_AGO = 1_000_000_000


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder in place of the system's temporary one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_old(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_it_is_private_and_removed_with_all_that_is_in_it(tmp_path):
    place = MeetingPlace()
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
    (place.path / "socket").touch()
    place.remove()
    place.remove()
    assert not place.path.exists()


def test_a_unix_socket_fits_even_under_a_long_temporary_folder(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    place = MeetingPlace()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.path / "1000.out"))
    place.remove()


def test_directories_of_dead_owners_are_removed_and_those_in_use_are_not(temporary):
    code = (
        "from octavo.engine.meeting_place import MeetingPlace as M; import os; print(M().path, flush=True); os._exit(9)"
    )
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    left_behind, in_use = Path(result.stdout.strip()), MeetingPlace()
    assert left_behind.exists(), result.stderr
    MeetingPlace().remove()
    assert left_behind.exists()  # young: its owner may be about to lock it
    strange = temporary / "octavo-notes"  # not a meeting place
    strange.mkdir()
    for path in (left_behind, in_use.path, strange):
        make_old(path)
    MeetingPlace().remove()
    assert not left_behind.exists()
    assert in_use.path.exists() and strange.exists()
    in_use.remove()


def test_links_are_not_followed(temporary, tmp_path_factory):
    target = tmp_path_factory.mktemp("elsewhere")
    (target / "lock").touch()
    make_old(target)
    (temporary / "octavo-link").symlink_to(target)
    MeetingPlace().remove()
    assert (target / "lock").exists()
