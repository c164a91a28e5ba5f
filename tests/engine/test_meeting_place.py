"""The directory of a front end and its core: private, gone at the end."""

from __future__ import annotations

import socket
import stat
import tempfile

from octavo.engine.meeting_place import MeetingPlace


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
