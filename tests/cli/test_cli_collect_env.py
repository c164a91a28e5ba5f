"""`octavo collect-env`: what a bug report needs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_is_shown_with_its_version(octavo):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.M | re.S)
    assert declared is not None
    names = set(re.findall(r'^ *"([\w-]+)', declared[1], re.M))
    assert len(names) > 5
    result = octavo("collect-env")
    assert result.status == 0
    shown = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert names <= shown.keys()
    assert re.match(r"\d", shown["numpy"])


def test_keys_are_not_shown(octavo, monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "very-secret")
    result = octavo("collect-env")
    assert "OCTAVO_API_KEY" in result.out and "very-secret" not in result.out
