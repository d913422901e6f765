"""Benchmarks: each module has ``rows()``, which measures and returns a list of dicts."""

from __future__ import annotations

from pathlib import Path


def benchmarks() -> list[str]:
    """Return the names of the benchmarks that are there, without importing them."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def description(name: str) -> str:
    """Return what a benchmark says of itself, without importing it."""
    return (Path(__file__).parent / f"{name}.py").read_text().split('"""')[1]
