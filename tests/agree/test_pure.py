"""The core decides and does nothing else: what it may import is a short list."""

import ast
from pathlib import Path

import pytest

import ftrt.agree

ROOT = Path(ftrt.agree.__path__[0])
# Modules that may touch the world: none yet; an MPI adapter would be listed here by name.
ADAPTERS: set[str] = set()
ALLOWED = {
    "__future__",
    "bisect",
    "collections.abc",
    "dataclasses",
    "enum",
    "typing",
    "ftrt.errors",
    "ftrt.agree",
}
MODULES = sorted(path for path in ROOT.glob("**/*.py") if path.name not in ADAPTERS)


def imported(tree):
    """Yield the name of each module that a tree imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def offences(text):
    """Return what a core module must not do."""
    tree = ast.parse(text)
    found = [m for m in imported(tree) if m not in ALLOWED and not m.startswith("ftrt.agree.")]
    calls = (n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and _named(n.func))
    found += [f for f in calls if f in ("open", "input", "__import__", "eval", "exec")]
    return found + ["assert" for n in ast.walk(tree) if isinstance(n, ast.Assert)]


def _named(node):
    return isinstance(node, ast.Name)


def test_there_is_something_to_check():
    assert {"marks.py", "recovery.py", "tables.py"} <= {path.name for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_core_modules_are_pure(path):
    assert offences(path.read_text()) == []


FOREIGN = [
    "mpi4py",
    "cupy",
    "h5py",
    "time",
    "threading",
    "random",
    "os",
    "socket",
    "numpy",
    "numba",
    "subprocess",
    "asyncio",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_the_check_itself_can_fail(name):
    assert offences(f"import {name}") == [name]
    assert offences(f"def f():\n    from {name}.x import y") == [f"{name}.x"]
    assert offences("open('x')") == ["open"]
