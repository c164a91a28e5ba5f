"""The command line as a whole: help, versions, exit statuses, and what it must not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.entrypoints.cli import main as main_module
from octavo.entrypoints.cli.main import COMMANDS, dashes_in_option_names
from octavo.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_is_printed_without_heavy_imports(arguments):
    """A help text must come at once; counting imports instead of time keeps the test honest on a busy machine."""
    heavy = ["numpy", "tokenizers", "gguf", "jinja2", "huggingface_hub", "safetensors", "tqdm", "asyncio"]
    code = (
        "import sys\nfrom octavo.entrypoints.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as exit_:\n    assert not exit_.code\n"
        f"print('HEAVY', [name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    result = python(code, *arguments)
    assert "usage: octavo" in result.stdout
    assert result.stderr.strip() == "HEAVY []"


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "octavo", "models", "path", "no-such-model"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode != 0 and "no model 'no-such-model' in the catalog" in result.stderr


def test_help_lists_every_command(octavo):
    result = octavo("--help")
    assert result.status == 0
    for name, entry in COMMANDS.items():
        assert name in result.out and entry.summary in result.out


def test_version_is_one_word_or_says_that_octavo_is_not_installed(octavo):
    result = octavo("--version")
    assert result.status == 0 and len(result.out.splitlines()) == 1


def test_no_command_shows_the_help_and_fails(octavo):
    result = octavo()
    assert result.status == 2 and result.out == "" and "generate" in result.err


@pytest.mark.parametrize("arguments", [("genrate",), ("--bogus",), ("generate", "hi", "--bogus"), ("models", "burn")])
def test_wrong_usage_is_status_2_and_no_traceback(octavo, arguments):
    result = octavo(*arguments)
    assert result.status == 2
    assert "Traceback" not in result.err and result.err.strip()


@pytest.mark.parametrize(
    ("arguments", "closest"),
    [
        (("generate", "hi", "--temprature", "0"), "--temperature"),
        (("serve", "x", "--max_modellen=3"), "--max-model-len"),
        (("genrate",), "generate"),
        (("bench", "laten"), "bench latency"),
    ],
)
def test_misspelt_options_and_commands_name_the_closest_known(octavo, arguments, closest):
    result = octavo(*arguments)
    assert result.status == 2 and result.err.count("\n") == 1
    assert f"did you mean {closest}" in result.err


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (("serve", "x", "-t", "20"), "set OCTAVO_NUM_THREADS"),  # not -tp
        (("generate", "-p", "2"), "give the prompt without a flag"),  # not -pp
        (("serve", "-hf", "a/b"), "ORG/MODEL:QUANT"),  # not -h f
        (("serve", "x", "--swap-space", "4"), "leave it out: preempted"),
        (("serve", "x", "--rope-theta", "1"), "use --hf-overrides"),
        (("serve", "x", "--speculative-config.method", "ngram"), "give --speculative-config a JSON object"),
    ],
)
def test_flags_of_other_programs_are_never_taken_for_our_own(octavo, arguments, way_out):
    result = octavo(*arguments)
    assert result.status == 2 and "unrecognized arguments" in result.err and way_out in result.err


def test_usage_errors_of_a_command_are_one_line_that_says_where_help_is(octavo):
    result = octavo("generate", "hi", "--n", "two")
    assert result.status == 2
    assert (
        result.err == "octavo generate: error: argument --n: invalid int value: 'two'; see `octavo generate --help`\n"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--max_model_len", "5"], ["--max-model-len", "5"]),
        (["--max_model_len=a_b"], ["--max-model-len=a_b"]),
        (["a_b", "-q", "x_y"], ["a_b", "-q", "x_y"]),
        (["--", "--not_an_option"], ["--", "--not_an_option"]),
    ],
)
def test_underscores_in_option_names_are_dashes(given, expected):
    assert dashes_in_option_names(given) == expected


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("temperature must be …"), 2),
        (ConfigError("max_model_len=8192 exceeds …"), 2),
        (UnsupportedError("LoRA is not built"), 2),
        (ModelNotFoundError("no model 'x'"), 1),
        (CheckpointError("the file is\nshort"), 1),
        (EngineDeadError("dead"), 1),
        (PermissionError(13, "Permission denied", "/etc/shadow"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_a_status(octavo, monkeypatch, error, status):
    def run(args):
        raise error

    monkeypatch.setattr("octavo.entrypoints.cli.models.run", run)
    result = octavo("models", "list")
    assert result.status == status
    assert len(result.err.splitlines()) == 1
    if status != 130:
        assert result.err == f"octavo: error: {' '.join(str(error).split())}\n"


def test_debug_level_shows_the_traceback(octavo, monkeypatch):
    def run(args):
        raise ConfigError("wrong")

    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "DEBUG")
    monkeypatch.setattr("octavo.entrypoints.cli.models.run", run)
    with pytest.raises(ConfigError):
        octavo("models", "list")


def test_our_own_bugs_are_not_hidden(octavo, monkeypatch):
    def run(args):
        raise KeyError("a bug")

    monkeypatch.setattr("octavo.entrypoints.cli.models.run", run)
    with pytest.raises(KeyError):
        octavo("models", "list")


def test_a_reader_that_goes_away_ends_the_command_quietly():
    """`octavo … | head -1` must not end in a traceback."""
    module = main_module.__name__
    code = (
        f"import sys; import {module} as m\nfrom octavo.entrypoints.cli import models\n"
        "def run(args):\n    for _ in range(100000):\n        print('line')\n    return 0\n"
        "models.run = run\nsys.exit(m.main(['models', 'list']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert error == ""


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_count_as_empty(redirection):
    command = f"exec {sys.executable} -m octavo.entrypoints.cli.main generate --model /absent {redirection}"
    result = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    assert ("octavo: error:" in result.stderr) == ("2>&-" not in redirection)


def test_text_comes_out_whole_whatever_the_locale_says():
    """Under a locale of ASCII the first emoji of an answer ended the program with a traceback."""
    command = [sys.executable, "-m", "octavo.entrypoints.cli.main", "generate", "--model", "/absent-\u2603"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = subprocess.run(command, cwd=ROOT, capture_output=True, env=environment, check=False)
    assert "/absent-\u2603" in result.stderr.decode() and b"Traceback" not in result.stderr
    code = "import sys; from octavo.entrypoints.cli.main import main; main(['--version']); print('\u2603')"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, env=environment, check=True)
    assert shown.stdout.decode().endswith("\u2603\n")


def test_a_misspelt_log_level_is_named_and_stops_nothing(monkeypatch):
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "loud")
    result = python("import octavo.log, logging; print(logging.getLogger('octavo').level == logging.INFO)")
    assert result.stdout.strip() == "True"
    assert "OCTAVO_LOG_LEVEL" in result.stderr and "LOUD" in result.stderr and "Traceback" not in result.stderr


def test_a_misspelt_variable_is_named_with_the_closest_known(monkeypatch):
    monkeypatch.setenv("OCTAVO_NUM_THREAD", "2")
    result = python("from octavo.utils.names import warn_of_unknown_variables as warn; warn(); warn()")
    assert result.stderr.count("OCTAVO_NUM_THREAD is not known") == 1
    assert "did you mean OCTAVO_NUM_THREADS?" in result.stderr
