"""Every named point of the ledger, also those inside the compiled commit, and a hook for them."""

from __future__ import annotations

import re
import types
from pathlib import Path

import numpy as np

from ftrt import atomics
from ftrt.ledger import commit, steps

_LEDGER = Path(steps.__file__).parent
_POINT = re.compile(r"\bstep\(\"([a-z]+\.[a-z]+)\"\)")

#: Around the stores of the compiled commit, see :func:`open_commit`.
COMMIT_POINTS = {
    *("commit.ended", "commit.stored", "commit.extended", "commit.swap", "commit.swapped"),
}

#: Passed by whoever ends an epoch and writes the record of the next; test_crash.py has them.
AT_THE_END_OF_AN_EPOCH = {
    "seal.counted",
    "seal.segment",
    "seal.closed",
    "seal.tombstone",
    "record.written",
    "record.linked",
}


def all_points() -> set[str]:
    """Names of all points, from the source."""
    text = "".join(path.read_text() for path in _LEDGER.glob("*.py"))
    return set(_POINT.findall(text)) | COMMIT_POINTS


def open_commit(rough: bool = False, packed: bool = False) -> None:
    """Run the commit's own source in Python from now on, with a point at each of its stores.

    With ``rough`` every event gets a word of its own, so that pages and segments fill up; with
    ``packed`` events that follow each other are written as if they did not.
    """
    names = {"load_acquire": _load, "compare_exchange": _swap}
    if packed:
        names["MAX_RUN"] = 1
    if rough:
        names.update(MAX_RUN=1, MOST=1, _held=lambda run, following: 0)
    ended = {"store_release": _storing("commit.ended"), "_at": commit._at.py_func}
    names["store_release"] = _storing("commit.stored")
    names["_end_run"] = _with(commit._end_run.py_func, ended)
    names["_at"] = commit._at.py_func
    extended = {"store_release": _storing("commit.extended"), "_at": commit._at.py_func}
    names["_extend_word"] = _with(commit._extend_word.py_func, extended)
    commit.append = _with(commit.append.py_func, names)
    commit.append_batch = _with(commit.append_batch.py_func, names)


def _with(function, names: dict):
    return types.FunctionType(function.__code__, {**function.__globals__, **names})


def _load(whole, at):
    return np.uint64(atomics.load(whole, at))


def _storing(point: str):
    def store(whole, at, value):
        atomics.store(whole, at, value)
        steps.step(point)

    return store


def _swap(whole, at, expected, desired):
    steps.step("commit.swap")
    held = np.uint64(atomics.swap_if(whole, at, expected, desired))
    steps.step("commit.swapped")
    return held
