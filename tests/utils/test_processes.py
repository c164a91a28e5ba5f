"""Processes of our own start with their arguments and end whatever stands in the way."""

from __future__ import annotations

import signal
import subprocess

from octavo.utils.processes import end_child, start_python


def test_a_program_gets_plain_data_and_the_import_path() -> None:
    process = start_python("import octavo; print(arguments)", [1, ["a b", None]], stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"[1, ['a b', None]]\n" and process.returncode == 0


def test_a_child_is_killed_and_its_status_told() -> None:
    assert end_child(start_python("import time; time.sleep(60)")) == -signal.SIGKILL
    process = start_python("sys.exit(3)")
    process.wait()
    assert end_child(process) == 3


def test_a_process_ends_although_nobody_reads_what_it_has_said() -> None:
    program = "from octavo.utils.processes import end_process; sys.stdout = open(1, 'w'); print('x'); "
    program += "sys.stdin.read(); end_process(7)"
    process = start_python(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.close()
    assert process.wait(10) == 7
