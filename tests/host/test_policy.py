"""The application's policy for heirs: whatever it does, it is asked with a limit."""

import time
from pathlib import Path

import pytest

from ftrt.errors import UsageError
from ftrt.host.policy import LIMIT_S, Policy, parse

POLICIES = Path(__file__).parents[1] / "runtime" / "policies.py"
STREAMS = [("numbers", 0, 1), ("numbers", 0, 2), ("numbers", 0, 3)]


@pytest.fixture
def policy():
    made = []

    def make(name):
        made.append(Policy(f"{POLICIES}:{name}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_its_answer_comes_back_every_time(policy):
    lowest = policy("lowest")
    for lost, living in (([3], [0, 1, 2]), ([2, 3], [0, 1])):
        assert lowest.ask(lost, living, STREAMS) == (tuple((rank, 1) for rank in lost), "")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raised ValueError: I cannot choose"),
        ("hangs", "did not answer within 1 s"),
        ("leaves", "ended its process"),
        ("nonsense", "raised TypeError"),
    ],
)
def test_what_is_no_answer_is_refused_in_time(policy, name, says):
    asked = policy(name)
    begin = time.monotonic()
    chosen, refused = asked.ask([3], [0, 1, 2], STREAMS)
    assert chosen is None and says in refused
    chosen, refused = asked.ask([3], [0, 1, 2], STREAMS)  # whatever became of it
    assert chosen is None and refused
    assert time.monotonic() - begin < LIMIT_S + 5


def test_a_policy_that_names_a_dead_rank_is_for_the_core_to_refuse(policy):
    assert policy("a_dead_one").ask([3], [1, 2], STREAMS) == (((3, 3),), "")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("policies.py", "write FILE.py:FUNCTION"),
        (":lowest", "write FILE.py:FUNCTION"),
        ("nowhere.py:lowest", "there is no file"),
        (f"{POLICIES}:nobody", "cannot be loaded"),
    ],
)
def test_what_names_no_policy_is_refused(spec, says):
    with pytest.raises(UsageError, match=says):
        Policy(spec)


def test_it_is_found_from_any_folder(monkeypatch):
    monkeypatch.chdir(POLICIES.parent)
    assert parse("policies.py:lowest") == (POLICIES, "lowest")
