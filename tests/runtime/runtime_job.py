"""Runs real jobs under real mpirun for the tests, each with a hard time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STREAM = ROOT / "apps" / "stream.py"


@dataclass
class Ended:
    """A job that ended."""

    status: int
    output: str
    ledger: Path
    report: dict = field(default_factory=dict)

    @property
    def events(self) -> list[dict]:
        """All events of all attempts and hosts."""
        paths = sorted((self.ledger / "run").glob("events*.jsonl"))
        assert paths, f"{self.ledger} has no record of what happened"
        lines = [line for path in paths for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def named(self, event: str) -> list[dict]:
        """Events of one kind."""
        return [entry for entry in self.events if entry["event"] == event]

    @property
    def records(self) -> list[dict]:
        """Records of all epochs."""
        paths = sorted((self.ledger / "epochs").glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]


def _path() -> str:
    """This tree first, then what a GPU host needs to find its libraries."""
    return os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)


def run_job(
    directory: Path, options: list, program, *arguments, limit_s: float = 60.0, env=None
) -> Ended:
    """``ftrt run`` with its ledger in ``directory``; killed with all it started after the limit."""
    ledger, report = directory / "ledger", directory / "report.json"
    command = [sys.executable, "-m", "ftrt.cli", "run", "--ledger", ledger, "--json", report]
    command += [*options, program, *arguments]
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _path(), **(env or {})},
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        raise AssertionError(f"the job did not end within {limit_s} s:\n{output}") from None
    found = json.loads(report.read_text()) if report.exists() else {}
    return Ended(process.returncode, output, ledger, found)
