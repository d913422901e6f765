"""``python -m tests.calm``: nobody is replaced in a job that is only slow.

Sixteen ranks on the cores that there are, with the usual time-outs, in one of three situations:
``crowded`` as they are; ``quota`` with a CPU quota that stops all of them for about 100 ms at a
time (a control group, for which one has to be root); ``suspended`` with all of the job stopped for
longer than the evict time-out, again and again. Prints a line of JSON; the exit status is 1 if
anybody was replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ftrt.errors import FtrtError
from ftrt.launch import leftovers
from ftrt.ledger.record import read_job

ROOT = Path(__file__).resolve().parents[2]
RANKS = 16
SUSPENDED_S, BETWEEN_S = 7.0, 13.0
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_US = 200_000


@contextlib.contextmanager
def throttled() -> Iterator[Path]:
    """A control group that may use half of the cores' time, in pieces of a fifth of a second."""
    version_1 = (_V1 / "cpu.cfs_quota_us").exists()
    group = (_V1 if version_1 else _V2) / f"ftrt-calm-{os.getpid()}"
    group.mkdir()
    quota_us = _PERIOD_US * (os.cpu_count() or 1) // 2
    try:
        if version_1:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        yield group
    finally:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with contextlib.suppress(OSError):  # its last processes are going
                group.rmdir()
                break
            time.sleep(0.1)


def suspend(ledger: Path) -> bool:
    """SIGSTOP to all that belongs to the job, and SIGCONT; False if there is none."""
    with contextlib.suppress(FtrtError, OSError):
        pids = leftovers.of_job(read_job(ledger)["job"])
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(SUSPENDED_S)
        return bool(pids)
    return False


def longest_silence_s(events: list[dict]) -> float:
    """The longest time for which a heartbeat stood still that was forgiven."""
    began: dict[int, float] = {}
    longest = 0.0
    for event in sorted(events, key=lambda event: event["t"]):
        if event["event"] == "suspected":
            began[event["process"]] = event["t"] - event["silent_s"]
        elif event["event"] == "cleared" and event["process"] in began:
            longest = max(longest, event["t"] - began.pop(event["process"]))
    return round(longest, 3)


def run(situation: str, seconds: float, folder: Path) -> dict:
    ledger, report = folder / "ledger", folder / "report.json"
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", str(RANKS), "--ledger", str(ledger)]
    command += ["--json", str(report), str(Path(__file__).parent / "program.py"), str(seconds)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    suspensions, throttles = 0, {}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(throttled()) if situation == "quota" else None

        def join() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        job = subprocess.Popen(
            command,
            env=env,
            preexec_fn=join,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.callback(job.kill)
        end = time.monotonic() + seconds + 120
        while situation == "suspended" and job.poll() is None and time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(BETWEEN_S)
                break
            suspensions += suspend(ledger)
        output, _ = job.communicate(timeout=max(1.0, end - time.monotonic()))
        if group is not None:
            lines = (group / "cpu.stat").read_text().splitlines()
            throttles = {name: int(value) for name, value in map(str.split, lines)}
    files = (ledger / "run").glob("events*.jsonl")
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    count = {name: sum(e["event"] == name for e in events) for name in ("died", "suspected")}
    found = json.loads(report.read_text())
    silent = longest_silence_s(events)
    result = {
        "situation": situation,
        "seconds": seconds,
        "status": job.returncode,
        "messages": (found.get("audit") or {}).get("consumed", 0),
        **count,
        "recoveries": len(found.get("recoveries", [])),
        "attempts": found.get("attempts"),
        "longest_silence_s": silent,
        "suspensions": suspensions,
        "throttled": throttles,
    }
    if job.returncode:
        print(output, file=sys.stderr)
    return result


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.calm")
    options.add_argument("--situation", choices=["crowded", "quota", "suspended"], required=True)
    options.add_argument("--seconds", type=float, default=600.0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftrt-calm-") as folder:
        result = run(given.situation, given.seconds, Path(folder))
    print(json.dumps(result), flush=True)
    calm = not (result["died"] or result["recoveries"]) and result["attempts"] == 1
    return 0 if calm and result["status"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
