"""The Promela model has the rows of the code's table, and spin finds nothing in it."""

import importlib.util
import re
from pathlib import Path

import pytest

from ftrt.agree.agreement import TRANSITIONS

FOLDER = Path(__file__).parents[2] / "models"
SPEC = importlib.util.spec_from_file_location("model_check", FOLDER / "check.py")
check = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check)
needs_spin = pytest.mark.skipif(not check.tools(), reason="spin or gcc is not installed")


def test_the_model_has_the_rows_of_the_code():
    text = check.MODEL.read_text()
    found = set(re.findall(r"\brow\((\w+), (\w+)\)", text)) - {("p", "e"), ("PHASE", "Event")}
    assert found == {(phase.name, event.__name__) for phase, event in TRANSITIONS}


@needs_spin
def test_three_agents_agree_whoever_crashes():
    found = check.verify(check.MODEL.read_text(), 3, 2, 0, 0)
    assert found["errors"] == "0" and int(found["states"]) > 10_000, found


@needs_spin
def test_the_model_notices_that_nobody_is_called_in():
    text = check.with_bug(check.MODEL.read_text(), "nobody is called in")
    assert "assertion violated" in check.verify(text, 3, 0, 0, 0)["says"]


@pytest.mark.parametrize("bug", check.BUGS)
def test_every_bug_has_its_place(bug):
    assert check.with_bug(check.MODEL.read_text(), bug) != check.MODEL.read_text()
