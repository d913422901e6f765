"""Nobody is replaced who is only slow: a job that was suspended as a whole goes on as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from test_deaths import stream_job

from ftrt.errors import FtrtError
from ftrt.host.board import Board, Status, job_directory
from ftrt.launch import leftovers
from ftrt.ledger.record import read_job

EVICT_S, SUSPENDED_S = 0.6, 1.5


def suspend_once_it_runs(ledger: Path, limit_s: float = 30.0) -> None:
    """SIGSTOP to ranks, agent and mpirun of the job, SIGCONT later than the evict time-out."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        time.sleep(0.01)
        with contextlib.suppress(FtrtError, OSError):
            job = read_job(ledger)["job"]
            if Board(job_directory(job, 1) / "board").status is Status.RUNNING:
                break
    time.sleep(0.3)
    pids = sorted(leftovers.of_job(job))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(SUSPENDED_S if number == signal.SIGSTOP else 0)


def test_a_suspended_job_goes_on_with_everybody(tmp_path):
    hand = threading.Thread(target=suspend_once_it_runs, args=[tmp_path / "ledger"])
    hand.start()
    ended = stream_job(
        tmp_path,
        [],
        messages=400,
        arguments=["--delay-us", 4000],
        options=["--evict-timeout-s", EVICT_S],
    )
    hand.join()
    assert not ended.named("died") and not ended.named("recovery")
    assert ended.report["attempts"] == 1
