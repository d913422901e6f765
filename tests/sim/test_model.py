"""The Promela models have the rows of the code's tables, and spin finds nothing in them."""

import importlib.util
import re
from pathlib import Path

import pytest

from ftrt.agree import agreement, tables

FOLDER = Path(__file__).parents[2] / "models"
SPEC = importlib.util.spec_from_file_location("model_check", FOLDER / "check.py")
check = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check)
needs_spin = pytest.mark.skipif(not check.tools(), reason="spin or gcc is not installed")


@pytest.mark.parametrize(
    ("path", "table"), [(check.MODEL, agreement.TRANSITIONS), (check.RECOVERY, tables.TRANSITIONS)]
)
def test_a_model_has_the_rows_of_the_code(path, table):
    found = set(re.findall(r"\brow\((\w+), (\w+)\)", path.read_text()))
    found -= {("p", "e"), ("s", "e"), ("PHASE", "Event"), ("STATE", "Event")}
    assert found == {(state.name, event.__name__) for state, event in table}


@needs_spin
@pytest.mark.parametrize(
    ("path", "sizes"),
    [
        (check.MODEL, (3, 2, 0, 0)),
        (check.RECOVERY, (3, 1, 0, 0, 1)),
        (check.RECOVERY, (4, 1, 0, 0, 1)),
    ],
)
def test_spin_finds_nothing(path, sizes):
    found = check.verify(path.read_text(), *sizes)
    assert found["errors"] == "0" and int(found["states"]) > 10_000, found


@needs_spin
def test_the_model_notices_that_nobody_is_called_in():
    text = check.with_bug(check.MODEL, "nobody is called in")
    assert "assertion violated" in check.verify(text, 3, 0, 0, 0)["says"]


def test_every_bug_has_its_place():
    for path, bugs in ((check.MODEL, check.BUGS), (check.RECOVERY, check.RECOVERY_BUGS)):
        assert all(check.with_bug(path, bug) != path.read_text() for bug in bugs)
