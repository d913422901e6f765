"""SIGKILL of a receiver until its hot spare has committed its first consumption, from outside.

The kill is timed by the clock of this process; the end is the first event in the ledger of the new
epoch, seen by polling the mapped file. Nothing that the job says of itself is used.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ftrt.errors import DeadlineExceeded
from ftrt.host.board import Board, job_directory, wait_for_board
from ftrt.ledger.layout import split_head
from ftrt.ledger.record import read_job, read_record
from ftrt.ledger.segment import Segment

_LIMIT_S = 60.0
# Before the first kill: until the standby communicators are connected.
_SETTLE_S = {"host": 0.15, "nccl": 6.0}


def rows(
    plane: str = "host", seconds_budget: float = 20.0, kills: int = 6, state_bytes: int = 1024
) -> list[dict]:
    """Kill the receiver ``kills`` times in each of as many jobs as the budget allows.

    On plane nccl half of the spares lie on the sender's GPU and are never used.

    Returns
    -------
    list of dict
        One row; ``ftrt`` is the median, ``spread`` the range between the 10th and 90th percentile,
        both in milliseconds.
    """
    end = time.monotonic() + seconds_budget
    times: list[float] = []
    while not times or time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="ftrt-bench-") as directory:
            times += _one_job(Path(directory), kills, plane, state_bytes)
    low, median, high = np.percentile(times, [10, 50, 90])
    what = f"SIGKILL to the first commit on the spare, {len(times)} kills"
    return [
        {
            "what": what,
            "size": state_bytes,
            "unit": "ms",
            "raw": None,
            "ftrt": round(float(median), 3),
            "ratio": None,
            "spread": round(float(high - low), 3),
            "max": round(float(max(times)), 3),
        }
    ]


def _one_job(directory: Path, kills: int, plane: str, state_bytes: int) -> list[float]:
    ledger, stop = directory / "ledger", directory / "stop"
    program = Path(__file__).with_name("_recovery_job.py")
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--plane", plane]
    command += ["--spares", str(2 * kills if plane == "nccl" else kills)]
    command += ["--ledger", str(ledger), str(program), str(stop), str(state_bytes)]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: (ledger / "job.json").exists(), "the job's ledger")
        path = job_directory(read_job(ledger)["job"], 1) / "board"
        board = wait_for_board(path, _LIMIT_S)
        times = []
        for epoch in range(1, kills + 1):
            _first_commit(board, ledger, epoch)
            time.sleep(_SETTLE_S[plane] if epoch == 1 else 0.15)
            times.append(_kill(board, ledger, epoch))
        stop.touch()
        job.wait(_LIMIT_S)
        return times
    finally:
        stop.touch()
        if job.poll() is None:
            job.terminate()
            job.wait(_LIMIT_S)


def _kill(board: Board, ledger: Path, epoch: int) -> float:
    """Kill rank 1 of ``epoch``; milliseconds until the next epoch's first consumption."""
    members = read_record(ledger, epoch)["members"]
    victim = next(member["pid"] for member in members if member["rank"] == 1)
    start = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    return (_first_commit(board, ledger, epoch + 1) - start) * 1e3


def _first_commit(board: Board, ledger: Path, epoch: int) -> float:
    """Time at which rank 1's ledger of ``epoch`` had its first event."""
    _until(lambda: board.epoch >= epoch, f"epoch {epoch}")
    segment = Segment(ledger / f"e{epoch:06d}-r0001-s000.h5", write=False)
    heads = segment.streams["head"]
    _until(lambda: any(split_head(int(head))[0] for head in heads[:2]), "the first commit")
    return time.perf_counter()


def _until(condition, what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        time.sleep(2e-4)  # shorter ones would take half a core from the job
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"bench recovery: {what} did not come within {_LIMIT_S:g} s")
