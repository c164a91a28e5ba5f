"""A machine without a compiler: the package still builds and computes, and says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"build-dir": sys.argv[2]})
"""

# An editable installation's finder would bring back this checkout's own package.
USE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import numpy as np
import octavo
from octavo.ops.select import select_ops
assert octavo.__file__.startswith(sys.argv[1]), octavo.__file__
ops = select_ops()
assert ops.name == "reference"
weight = ops.pack([np.full((3, 4), 0.5, np.float32)])
assert (ops.linear(np.ones((2, 4), np.float32), weight) == 2).all()
"""


def test_it_installs_as_pure_python_and_warns(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="builds a wheel in this environment")
    nowhere = {"CXX": str(tmp_path / "no-c++"), "CC": str(tmp_path / "no-cc")}
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path), str(tmp_path / "build")],
        cwd=ROOT,
        env={**os.environ, **nowhere, "PATH": tools},
        capture_output=True,
        text=True,
    )
    output = built.stdout + built.stderr
    assert built.returncode == 0, output
    assert "no working C++ compiler found" in output

    (wheel,) = tmp_path.glob("octavo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "octavo/ops/reference.py" in names
    assert not [name for name in names if name.endswith(".so") or "csrc" in name or name.startswith("tests")]

    site = str(tmp_path / "site")
    used = subprocess.run(
        [sys.executable, "-c", USE, site],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": site, "OCTAVO_OPS": ""},
        capture_output=True,
        text=True,
    )
    assert used.returncode == 0, used.stderr
    assert "batch invariance" in used.stderr and "reinstall octavo" in used.stderr
