"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line of ``ftrt doctor``.

    Attributes
    ----------
    name : str
    status : {'ok', 'warn', 'fail'}
        ``warn``: a job runs, and something will be slower, or missing; ``fail``: it does not.
    found, expected : str
    fix : str
        What to type; empty where nothing is to be done.
    """

    name: str
    status: Status
    found: str
    expected: str
    fix: str = ""


def judged(
    name: str, good: bool, found: str, expected: str, fix: str, bad: Status = "warn"
) -> Check:
    """A check that is ok, or ``bad`` with what to type."""
    return Check(name, "ok" if good else bad, found, expected, "" if good else fix)
