"""Each line of a table of outcomes or situations names tests that hold it up, and they exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_NAMED = re.compile(r"`(?:tests/)?([a-z_0-9/]+\.py::\w+(?:\[[^`]*\])?)`")

#: Page, and the heading under which its tables name tests in their last column.
PAGES = [
    ("ARCHITECTURE.md", "## Who dies, and what becomes of the job"),
    ("docs/recovery.md", "## Situations that are known to break ULFM"),
]


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next of the same depth."""
    text = (ROOT / page).read_text()
    assert f"\n{heading}\n" in text, f"{page} has no heading {heading!r}"
    return text.partition(f"\n{heading}\n")[2].partition(f"\n{heading.split()[0]} ")[0]


def rows(text: str) -> list[list[str]]:
    """The lines of tables whose last column is called tests."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "tests":
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def complaints(text: str, collected: set[str]) -> list[str]:
    """What is wrong with the lines and with every other test that the text names."""
    found = [f"no test: {cells[0]}" for cells in rows(text) if not _NAMED.search(cells[-1])]
    return found + [f"not collected: {x}" for x in _NAMED.findall(text) if x not in collected]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Node ids, below ``tests/``, of all tests in the files that the pages name, whatever mark."""
    text = "".join(section(*page) for page in PAGES)
    files = sorted({name.partition("::")[0] for name in _NAMED.findall(text)})
    there = [f"tests/{file}" for file in files if (ROOT / "tests" / file).exists()]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts="]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *there],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ids = {line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}
    return ids | {one.partition("[")[0] for one in ids}


@pytest.mark.parametrize(("page", "heading"), PAGES)
def test_every_line_names_tests_that_exist(page, heading, collected):
    text = section(page, heading)
    assert len(rows(text)) > 10
    assert not complaints(text, collected)


def test_a_line_without_a_test_is_found(collected):
    table = "| what | tests |\n|---|---|\n| a | {} |\n"
    there = "runtime/test_deaths.py::test_both_ends_die"
    assert complaints(table.format(f"`{there}`"), collected) == []
    assert complaints(table.format("many"), collected) == ["no test: a"]
    for wrong in (f"{there}_not", "runtime/test_nowhere.py::test_a", f"{there}[nothing]"):
        assert complaints(table.format(f"`{wrong}`"), collected) == [f"not collected: {wrong}"]
