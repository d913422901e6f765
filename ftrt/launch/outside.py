"""A whole ``ftrt run`` as its user sees it: started as a process of its own, and ended by force."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ENDS_S = 20.0


@dataclass
class Outcome:
    """How it ended.

    Attributes
    ----------
    status : int or None
        Exit status; None if it had to be ended.
    output : str
    report, events : dict, list of dict
        What it wrote.
    """

    status: int | None
    output: str
    report: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)


def run_from_outside(
    directory: Path,
    arguments: Sequence[str],
    limit_s: float,
    settings: Mapping[str, str] | None = None,
    beside: contextlib.AbstractContextManager[Any] | None = None,
    prefix: Sequence[str] = (),
) -> Outcome:
    """Run ``ftrt run ARGUMENTS`` with its ledger and report in ``directory``.

    Parameters
    ----------
    directory : path
        An empty folder.
    arguments : sequence of str
        Options, program, and its arguments.
    limit_s : float
        After so long it is ended by force.
    settings : mapping
        Variables of its environment.
    beside : context manager
        Entered while it runs.
    prefix : sequence of str
        A command that starts it.
    """
    ledger, report = directory / "ledger", directory / "report.json"
    command = [*prefix, sys.executable, "-m", "ftrt.cli", "run"]
    command += ["--ledger", str(ledger), "--json", str(report), *arguments]
    job = subprocess.Popen(
        command,
        env={**os.environ, **(settings or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        with beside or contextlib.nullcontext():
            status, output = _follow(job, limit_s)
    finally:
        if job.poll() is None:  # whoever called us is on its way out
            _end(job)
    found = json.loads(report.read_text()) if report.exists() else {}
    return Outcome(status, output, found, events_of(ledger))


def events_of(ledger: Path) -> list[dict[str, Any]]:
    """The events of a job that is over."""
    path = ledger / "run" / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _follow(job: subprocess.Popen[str], limit_s: float) -> tuple[int | None, str]:
    try:
        output, _ = job.communicate(timeout=limit_s)
        return job.returncode, output
    except subprocess.TimeoutExpired:
        return None, _end(job)


def _end(job: subprocess.Popen[str]) -> str:
    """End it; what it wrote."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGTERM)
    try:
        return job.communicate(timeout=_ENDS_S)[0]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        return "it did not even end when it was told to"
