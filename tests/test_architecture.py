"""The rules that keep the code base this shape: import order, size limits, what may not be imported where.

The rules are data; the code below them only reads syntax trees. Every import counts: inside functions, under
TYPE_CHECKING, and as a dotted name in a string (lazy registries).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "octavo"

# A package imports only from rows above its own, and from itself.
# `octavo` is the public face: octavo/__init__.py and __main__.py, and modules under the names that they have in vLLM.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("envs",),
    ("log",),
    ("utils",),
    ("_native",),  # the compiled extension; only ops/ and distributed/ may import it
    ("types", "config"),
    ("platforms", "loader", "metrics"),
    ("tokenizers", "distributed"),
    ("ops",),
    ("attention", "quantization", "sampling", "structured", "parsing", "kv_cache", "kv_transfer", "multimodal"),
    ("layers", "scheduler"),
    ("models", "lora"),
    ("speculative",),
    ("worker",),
    ("executor",),
    ("engine",),
    ("entrypoints",),
    ("sampling_params", "pooling_params", "outputs", "inputs"),
    ("octavo",),
)
ROW_OF = {package: row for row, packages in enumerate(ROWS) for package in packages}

# Import name -> the distribution in pyproject.toml that brings it, where they are not called alike.
DISTRIBUTION_OF = {"huggingface_hub": "huggingface-hub", "zmq": "pyzmq", "yaml": "pyyaml"}
# Import name -> the extra that brings it: imported inside functions only, where the option that needs it is used.
EXTRA_OF = {"opentelemetry": "otel", "xgrammar": "xgrammar", "torch": "distributed", "ray": "ray"}
ARRAY_FREE = ("scheduler", "kv_cache")  # bookkeeping: no NumPy, no ops

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_METHODS = 25
MAX_CPP_LINES = 600
MAX_TOTAL_LINES = 58_500  # of Python in octavo/; raised on purpose, with a reason in docs/LOG.md
MAX_ENVIRONMENT_VARIABLES = 15

# "path::name" -> date (YYYY-MM-DD) when it was allowed. May only shrink: whoever splits an entry removes its line.
ALLOWED_TOO_LONG: dict[str, str] = {}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in MODULES}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> str:
    """Return the name that ROWS uses for a file: its top-level package or module below octavo/."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "octavo" if parts in (("__init__",), ("__main__",)) else parts[0]


def imports_of(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything that a module imports, wherever the import stands."""
    package_parts = ("octavo", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package_parts[: len(package_parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Constant) and re.fullmatch(r"octavo(\.\w+)+(:\w+)?", str(node.value)):
            name = str(node.value).replace(":", ".")
            if target_package(name) != "octavo":  # a dotted name that is no module of ours is just a name
                yield node.lineno, name


def target_package(name: str) -> str | None:
    """Return the ROWS name of an imported dotted name, or None when it is not ours."""
    parts = name.split(".")
    if parts[0] != "octavo":
        return None
    if len(parts) == 1:
        return "octavo"
    is_ours = (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists() or parts[1] == "_native"
    return parts[1] if is_ours else "octavo"


def too_long(found: dict[str, int], limit: int) -> dict[str, int]:
    return {name: size for name, size in found.items() if size > limit and name not in ALLOWED_TOO_LONG}


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(TREES[path]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield f"{relative(path)}::{node.name}", node.end_lineno - node.lineno + 1


def classes_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
            yield f"{relative(path)}::{node.name}", len(methods)


def test_every_package_has_a_row() -> None:
    names = {package_of(path) for path in MODULES}
    assert names <= ROW_OF.keys(), f"give these a row in ROWS: {sorted(names - ROW_OF.keys())}"


def test_packages_import_only_from_rows_above() -> None:
    wrong = []
    for path, tree in TREES.items():
        own = package_of(path)
        for line, name in imports_of(path, tree):
            target = None if name == "octavo.__version__" else target_package(name)
            if target is not None and target != own and ROW_OF.get(target, len(ROWS)) >= ROW_OF[own]:
                wrong.append(f"{relative(path)}:{line} ({own}, row {ROW_OF[own]}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_import_check_sees_every_form() -> None:
    source = (
        "import octavo.engine.core\nfrom octavo import worker\nfrom ..engine import core\n"
        "if TYPE_CHECKING:\n    from octavo.entrypoints.llm import LLM\n"
        "def f():\n    import torch\nTABLE = {'a': 'octavo.models.llama:Llama'}\n"
    )
    names = {name for _, name in imports_of(PACKAGE / "scheduler" / "x.py", ast.parse(source))}
    assert names == {
        "octavo.engine.core",
        "octavo.worker",
        "octavo.entrypoints.llm.LLM",
        "torch",
        "octavo.models.llama.Llama",
    }


def test_only_ops_and_distributed_import_the_native_extension() -> None:
    importers = {
        package_of(path)
        for path, tree in TREES.items()
        for _, name in imports_of(path, tree)
        if target_package(name) == "_native"
    }
    assert importers <= {"ops", "distributed"}


def test_third_party_imports_are_the_declared_dependencies() -> None:
    used: dict[str, str] = {}
    for path, tree in TREES.items():
        for line, name in imports_of(path, tree):
            top = name.split(".")[0]
            if top in EXTRA_OF:
                assert f"\n{EXTRA_OF[top]} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            elif top != "octavo" and top not in sys.stdlib_module_names:
                used.setdefault(DISTRIBUTION_OF.get(top, top), f"{relative(path)}:{line}")
    declared = set(re.findall(r'^    "([A-Za-z0-9_-]+)', runtime_dependencies(), re.M))
    undeclared = {name: where for name, where in used.items() if name not in declared}
    assert not undeclared, "declare these in pyproject.toml, with a reason in docs/dependencies.md"
    assert declared <= used.keys(), "nothing imports these: remove them from pyproject.toml"


def test_extras_are_imported_inside_functions_only() -> None:
    wrong = []
    for path, tree in TREES.items():
        checking = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
        ignored = {id(inner) for node in checking for inner in ast.walk(node)}
        inside = {id(inner) for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not {id(node)} & (ignored | inside):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                wrong += [f"{relative(path)}: {name}" for name in names if name.split(".")[0] in EXTRA_OF]
    assert not wrong


def test_scheduler_and_kv_cache_import_no_arrays() -> None:
    wrong = [
        f"{relative(path)}:{line} imports {name}"
        for path, tree in TREES.items()
        if package_of(path) in ARRAY_FREE
        for line, name in imports_of(path, tree)
        if name.split(".")[0] == "numpy" or target_package(name) == "ops"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["octavo", *(f"octavo.{name}" for name in ARRAY_FREE)])
def test_import_loads_no_numpy(package: str) -> None:
    """Not even through a third module: these are imported where nothing may wait for arrays."""
    code = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module({package!r})\n"
        f"names = [m.name for m in pkgutil.iter_modules(package.__path__)] if {package!r} != 'octavo' else []\n"
        f"[importlib.import_module({package!r} + '.' + name) for name in names]\n"
        "sys.exit('numpy was imported' if 'numpy' in sys.modules else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_modules_functions_and_classes_stay_small() -> None:
    modules = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    functions = {name: size for path in MODULES for name, size in functions_of(path)}
    classes = {name: size for path in MODULES for name, size in classes_of(path)}
    assert not too_long(modules, MAX_MODULE_LINES)
    assert not too_long(functions, MAX_FUNCTION_LINES)
    assert not too_long(classes, MAX_CLASS_METHODS)
    sizes = {
        **{name: size - MAX_MODULE_LINES for name, size in modules.items()},
        **{name: size - MAX_FUNCTION_LINES for name, size in functions.items()},
        **{name: size - MAX_CLASS_METHODS for name, size in classes.items()},
    }
    healed = [name for name in ALLOWED_TOO_LONG if sizes.get(name, 0) <= 0]
    assert not healed, f"remove from ALLOWED_TOO_LONG: {healed}"


def test_cpp_files_stay_small() -> None:
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".cpp", ".h", ".hpp", ".cc"}]
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not too_long(sizes, MAX_CPP_LINES)


def test_total_size_stays_below_the_ceiling() -> None:
    total = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES)
    assert total <= MAX_TOTAL_LINES, f"octavo/ has {total} lines; split, simplify, or raise the ceiling on purpose"


def test_only_envs_reads_the_environment() -> None:
    wrong = []
    for path, tree in TREES.items():
        if path == PACKAGE / "envs.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb", "putenv"}:
                wrong.append(f"{relative(path)}:{node.lineno}")
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                wrong += [f"{relative(path)}:{node.lineno}" for alias in node.names if "env" in alias.name]
    assert not wrong, f"read the environment in octavo/envs.py only: {wrong}"


def test_few_environment_variables() -> None:
    names = {
        node.value
        for node in ast.walk(TREES[PACKAGE / "envs.py"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z_]+", node.value)
    }
    variables = {name for name in names if name.startswith(("OCTAVO_", "XDG_"))}
    assert 1 <= len(variables) <= MAX_ENVIRONMENT_VARIABLES, sorted(variables)


def test_architecture_page_names_every_package_and_only_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/__init__.py")}
    assert not {name for name in packages if f"`{name}/`" not in page}
    listed = set(re.findall(r"`((?:octavo|csrc|tests|docs|scripts)/[\w/.-]+)`", page))
    assert listed
    assert not {name for name in listed if not (ROOT / name).exists()}


def test_dependency_page_names_every_dependency() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = re.findall(r'"([A-Za-z0-9_-]+)(?:[=<>~]=?[^"]*)"', project.split("[project.scripts]")[0])
    wanted = {name for name in names if not name[0].isdigit()}
    assert not {name for name in wanted if f"`{name}`" not in page}


def runtime_dependencies() -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.S | re.M)
    assert match
    return match.group(1)
