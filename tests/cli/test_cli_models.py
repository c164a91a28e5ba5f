"""`octavo models`: usage, and what it asks of the catalog."""

from __future__ import annotations

import pytest

from octavo.loader import catalog


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Let `pull` answer at once, and return the names it was asked for."""
    names: list[str] = []

    def pull(name, progress):
        names.append(name)
        progress(f"{name}: downloading")
        return tmp_path / f"{name}.gguf"

    monkeypatch.setattr(catalog, "pull", pull)
    return names


@pytest.mark.parametrize("arguments", [("pull",), ("path",), ("path", "a", "b"), ("list", "a")])
def test_wrong_numbers_of_names_are_refused(octavo, arguments):
    result = octavo("models", *arguments)
    assert result.status == 2 and result.err.count("\n") == 1


def test_without_an_action_the_models_are_listed(octavo, empty_cache):
    result = octavo("models")
    assert result.status == 0 and result.out == octavo("models", "list").out != ""


def test_list_shows_every_model_and_which_are_here(octavo, empty_cache):
    model = catalog.list_models()[0]
    path = empty_cache / "models" / model.name / model.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(model.size_bytes)
    lines = octavo("models", "list").out.splitlines()
    assert len(lines) == len(catalog.list_models())
    assert [line.split()[:4] for line in lines if model.name in line] == [
        [model.name, f"{model.size_bytes / 1e6:.0f}", "MB", "here"]
    ]
    assert all(line.split()[3] == "-" for line in lines if model.name not in line)


def test_pull_prints_where_each_model_lies_and_progress_on_standard_error(octavo, fetched, tmp_path):
    result = octavo("models", "pull", "a", "b")
    assert fetched == ["a", "b"]
    assert result.out == f"a: {tmp_path}/a.gguf\nb: {tmp_path}/b.gguf\n"
    assert result.err == "a: downloading\nb: downloading\n"


def test_path_of_a_model_that_was_not_fetched_fails_with_the_way_out(octavo, empty_cache):
    name = catalog.list_models()[0].name
    result = octavo("models", "path", name)
    assert result.status == 1 and f"octavo models pull {name}" in result.err and result.out == ""


def test_an_unknown_name_lists_the_known_ones(octavo, empty_cache):
    result = octavo("models", "path", "gpt-17")
    assert result.status == 1 and catalog.list_models()[0].name in result.err
