"""A machine without a compiler: the package still builds and computes, and says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tests.tiny_models import llama_config, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]

BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"build-dir": sys.argv[2]})
"""

# An editable installation's finder would bring back this checkout's own package.
USE = """
import json
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import octavo
assert octavo.__file__.startswith(sys.argv[1]), octavo.__file__
llm = octavo.LLM(sys.argv[2], kv_cache_memory_bytes=2**22)
params = octavo.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
(output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
print(json.dumps(list(output.outputs[0].token_ids)))
"""


def test_it_installs_as_pure_python_warns_and_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    model = str(write_tiny_model(tmp_path / "model", llama_config()))
    used = subprocess.run(
        [sys.executable, "-c", USE, site, model],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": site, "OCTAVO_OPS": ""},
        capture_output=True,
        text=True,
    )
    assert used.returncode == 0, used.stderr
    assert "batch invariance" in used.stderr and "reinstall octavo" in used.stderr
    monkeypatch.setenv("OCTAVO_OPS", "reference")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    llm = LLM(model, kv_cache_memory_bytes=2**22)
    (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    assert json.loads(used.stdout) == list(output.outputs[0].token_ids)
