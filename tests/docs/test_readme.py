"""The examples of README.md do what the page says, and links in the documents lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from octavo.entrypoints.cli import session as session_module
from octavo.entrypoints.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def console_commands() -> list[tuple[str, list[str]]]:
    """Return (command, lines that the page shows below it) of every console block, in order."""
    commands: list[tuple[str, list[str]]] = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


@pytest.fixture(scope="module")
def namespace():
    """What the Python examples leave behind; they build on one another and load the model once for all tests here."""
    return {}


@pytest.mark.model
def test_python_examples_run_in_order(namespace, capsys):
    examples = blocks("python")
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "The capital of France is ->" in printed
    assert "top_p must be" in printed  # the page shows what a refused parameter looks like


@pytest.mark.model
def test_console_examples_print_what_the_page_says(namespace, capsys, monkeypatch, tmp_path):
    if "llm" not in namespace:
        exec(compile(blocks("python")[0], "README.md", "exec"), namespace)
    session = session_module.Session(namespace["llm"].llm_engine)
    monkeypatch.setattr(session_module.Session, "from_arguments", lambda args, needs_template=False: session)
    monkeypatch.chdir(tmp_path)
    commands = console_commands()
    shown = {shlex.split(command)[1] for command, _ in commands if command.startswith("octavo ")}
    assert {"generate", "chat", "models", "collect-env"} <= shown <= set(COMMANDS)
    for command, expected in commands:
        capsys.readouterr()
        if command.startswith("octavo "):
            assert main(shlex.split(command)[1:]) == 0, command
        else:
            subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        printed = capsys.readouterr().out
        assert printed.splitlines()[: len(expected)] == expected, command
    results = (tmp_path / "results.jsonl").read_text(encoding="utf-8")
    assert '"id": "a"' in results


def test_scripts_that_the_page_names_can_be_run():
    scripts = re.findall(r"^(scripts/\S+)", "".join(blocks("sh")), re.M)
    assert scripts
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_that_exist(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_links_within_the_readme_lead_to_its_headings():
    headings = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", README, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= headings


def test_every_test_that_the_list_of_cases_names_exists():
    """docs/cases.md promises a test for each reported fault."""
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    missing = []
    source = ""
    for path, name in re.findall(r"`((?:tests|cases)/[\w/.]+\.py)?(?:::)?(test_\w+)?`", page):
        if path:
            file = ROOT / (path if path.startswith("tests/") else f"tests/{path}")
            source = file.read_text(encoding="utf-8") if file.exists() else ""
            if not source:
                missing.append(path)
        if name and f"def {name}(" not in source:
            missing.append(name)
    assert not missing


def test_every_reported_fault_with_a_test_is_in_the_list_of_cases():
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    numbers = {
        number
        for path in (ROOT / "tests" / "cases").glob("test_*.py")
        for number in re.findall(r"\bB\d{3}\b", path.read_text(encoding="utf-8"))
    }
    assert len(numbers) > 40
    assert not {number for number in numbers if f"| {number} |" not in page}
