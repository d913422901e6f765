"""SIGKILL of a receiver until its hot spare has committed its first consumption.

The kill is timed here, the commit by the process that makes it, by the same clock. It is seen from
outside as well: as the first event in the ledger of the new epoch, by polling the mapped file. That
is later by the time until the poll gets a core, which the dying process may have. Beside each job
plain ULFM heals the same deaths with revoke, shrink and agree, among three or four processes, the
first with the same burden.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ftrt.errors import DeadlineExceeded, UsageError
from ftrt.host import libc
from ftrt.host.board import Board, job_directory, wait_for_board
from ftrt.host.timing import PHASES
from ftrt.ledger.layout import split_head
from ftrt.ledger.record import read_job, read_record
from ftrt.ledger.segment import Segment

_LIMIT_S = 60.0
# Before the first kill: until the standby communicators are connected.
_SETTLE_S = {"host": 0.15, "nccl": 6.0}
_APART_S = 0.15
_SUSPECT_S = 0.01
_PAUSE_S = 0.1
#: Kills in a job where many are wanted.
_MANY = 12
_LOOK_S = 2e-4  # shorter ones would take half a core from the job
# Its processes wait in MPI, each on a core: few of them, in each start.
_ULFM_KILLS, _ULFM_LIMIT_S = 2, 20.0
_ULFM = ["--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm", "--mca", "pml", "ob1"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is beside a recovery: what survivors do, and how much state is restored."""

    says: str
    burden: str = "idle"
    state_bytes: int = 1024


VARIANTS = {
    "idle": Variant("idle"),
    "python": Variant("pure Python in survivors", "python"),
    "gil": Variant("GIL kept 300 ms in survivors", "gil"),
    "64MiB": Variant("64 MiB of state", "idle", 64 << 20),
}
#: One sample: milliseconds by name; ``raw`` is plain ULFM, ``whole`` until the commit, ``seen``
#: until that was seen from outside, the others are phases.
Sample = dict[str, float]


def rows(
    plane: str = "host",
    seconds_budget: float = 40.0,
    kills: int = 6,
    variants: tuple[str, ...] = tuple(VARIANTS),
) -> list[dict]:
    """Kill the receiver ``kills`` times in each of as many jobs as the budget allows.

    On plane nccl half of the spares lie on the sender's GPU and are never used, and only the idle
    variant is measured, without ULFM beside it.

    Returns
    -------
    list of dict
        A row for each variant, then one for what is seen from outside and each phase, all in
        milliseconds: ``ftrt`` and ``raw`` are medians, ``ratio`` is raw over ours, ``spread`` how
        far apart the 10th and the 90th percentile of raw are, over its median. The last row is the
        time from SIGSTOP until a rank is suspected, with a limit of 10 ms.
    """
    names = variants if plane == "host" else ("idle",)
    samples: dict[str, list[Sample]] = {}
    for name in names:
        samples[name] = measure(name, seconds_budget / len(names), kills, plane)
    if plane == "host":
        samples["freeze"] = freezes()
    return rows_of(samples)


def measure(name: str, seconds: float, kills: int = 6, plane: str = "host") -> list[Sample]:
    """Samples of one variant: jobs of ours and of ULFM by turns until the time is up.

    This thread gets a short slice, so that its poll soon has a core.
    """
    libc.ask_short_slice()
    end = time.monotonic() + seconds
    found: list[Sample] = []
    variant, beside = VARIANTS[name], plane == "host"
    while not found or time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="ftrt-bench-") as directory:
            with _Job(Path(directory), plane, variant, kills) as job:
                found += [job.kill(epoch) for epoch in range(1, kills + 1)]
            job.add_phases(found[-kills:])
        if beside:
            raw = _ulfm(1 if variant.burden == "gil" else _ULFM_KILLS, variant.burden)
            found += [{"raw": ms} for ms in raw]
            beside = bool(raw)  # one that hung would only hang again
    return found


def freezes(count: int = 8) -> list[Sample]:
    """Samples of the time from SIGSTOP of a rank until the agent suspects it."""
    with tempfile.TemporaryDirectory(prefix="ftrt-bench-") as directory:
        limit = {"FTRT_SUSPECT_TIMEOUT_S": str(_SUSPECT_S)}
        with _Job(Path(directory), "host", VARIANTS["idle"], 0, limit) as job:
            return [{"whole": job.freeze()} for _ in range(count)]


class _Job:
    """A running job of two ranks that is struck from outside."""

    def __init__(
        self,
        directory: Path,
        plane: str,
        variant: Variant,
        kills: int,
        settings: dict[str, str] | None = None,
    ):
        self.ledger, self._stop = directory / "ledger", directory / "stop"
        program = Path(__file__).with_name("_recovery_job.py")
        command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--plane", plane]
        command += ["--spares", str(2 * kills if plane == "nccl" else kills)]
        command += ["--ledger", str(self.ledger), str(program), str(self._stop)]
        command += [str(variant.state_bytes), variant.burden]
        self._settle_s = _SETTLE_S[plane]
        self._struck_s: dict[int, float] = {}
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(settings or {})},
        )

    def __enter__(self) -> _Job:
        try:
            _until(lambda: (self.ledger / "job.json").exists(), "the job's ledger")
            path = job_directory(read_job(self.ledger)["job"], 1) / "board"
            self._board: Board = wait_for_board(path, _LIMIT_S)
            self._first_commit(1)
            time.sleep(self._settle_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.touch()
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(_LIMIT_S)

    def kill(self, epoch: int) -> Sample:
        """Kill rank 1 of ``epoch`` at a moment of no significance."""
        time.sleep(_APART_S + random.random() * 0.02)
        victim = self._pid(epoch)
        self._struck_s[epoch + 1] = start = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        return {"seen": (self._first_commit(epoch + 1) - start) * 1e3}

    def freeze(self) -> float:
        """Stop rank 1 for a moment; milliseconds until it was suspected."""
        time.sleep(_APART_S + random.random() * 0.02)
        pid, known = self._pid(1), len(self._events("suspected"))
        start = time.perf_counter()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(_PAUSE_S)
        os.kill(pid, signal.SIGCONT)
        told = [e["at_s"] for e in self._events("suspected")[known:] if e.get("rank") == 1]
        return (next(at for at in told if at > start) - start) * 1e3

    def add_phases(self, samples: list[Sample]) -> None:
        """Add to samples, in the order of the kills, what the job recorded."""
        died = {event["epoch"] + 1: event["at_s"] for event in self._events("died")}
        told = {event["epoch"]: event for event in self._events("recovery")}
        for (epoch, struck_s), sample in zip(self._struck_s.items(), samples, strict=True):
            sample.update(told[epoch]["phases_ms"])
            sample["detect"] = (died[epoch] - struck_s) * 1e3
            sample["whole"] = (told[epoch]["at_s"] - struck_s) * 1e3

    def _events(self, name: str) -> list[dict[str, Any]]:
        """Events of a name; ``at_s`` is their time by the clock of this process."""
        run = self.ledger / "run"
        start_s = float((run / "attempt-1.start").read_text())
        lines = (run / "events.jsonl").read_text().splitlines()
        found = [event for event in map(json.loads, lines) if event["event"] == name]
        return [{**event, "at_s": start_s + event["t"]} for event in found]

    def _pid(self, epoch: int) -> int:
        members = read_record(self.ledger, epoch)["members"]
        return next(member["pid"] for member in members if member["rank"] == 1)

    def _first_commit(self, epoch: int) -> float:
        """Time at which rank 1's ledger of ``epoch`` had its first event."""
        _until(lambda: self._board.epoch >= epoch, f"epoch {epoch}")
        segment = Segment(self.ledger / f"e{epoch:06d}-r0001-s000.h5", write=False)
        heads = segment.streams["head"]
        _until(lambda: any(split_head(int(head))[0] for head in heads[:2]), "the first commit")
        return time.perf_counter()


def _ulfm(kills: int, burden: str) -> list[float]:
    """Times of plain ULFM, none if it hangs."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, *as_root, *_ULFM, "-n", str(2 + kills), sys.executable]
    command += [str(Path(__file__).with_name("_ulfm_job.py")), str(kills), burden]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = job.communicate(timeout=_ULFM_LIMIT_S)
    except subprocess.TimeoutExpired:  # it hangs now and then, for which nobody waits here
        job.terminate()
        job.communicate(timeout=_LIMIT_S)
        return []
    lines = [line for line in out.splitlines() if line.startswith("[")]
    if not lines:
        raise UsageError(f"plain ULFM ended with {job.returncode}: {errors[-800:]}")
    return json.loads(lines[-1])


def rows_of(samples: dict[str, list[Sample]]) -> list[dict]:
    """Rows of samples by variant; see :func:`rows`."""
    table = []
    for name, found in samples.items():
        if name == "freeze":
            table.append(_row("SIGSTOP until suspected, limit 10 ms", 0, _of(found, "whole")))
            continue
        variant, size = VARIANTS[name], VARIANTS[name].state_bytes
        whole = _of(found, "whole")
        what = f"{variant.says}: SIGKILL to first commit, {len(whole)} kills"
        table.append(_row(what, size, whole, _of(found, "raw")))
        table.append(_row("  seen from outside", size, _of(found, "seen")))
        for phase in PHASES:
            if times := _of(found, phase):
                table.append(_row(f"  {phase}", size, times))
    return table


def _of(samples: list[Sample], name: str) -> list[float]:
    return [sample[name] for sample in samples if name in sample]


def _row(what: str, size: int, times: list[float], raw: list[float] | None = None) -> dict:
    median = float(np.median(times))
    plain = float(np.median(raw)) if raw else None
    low, high = np.percentile(raw, [10, 90]) if raw else (0.0, 0.0)
    return {
        "what": what,
        "size": size,
        "unit": "ms",
        "raw": None if plain is None else round(plain, 3),
        "ftrt": round(median, 3),
        "ratio": None if plain is None else round(plain / median, 3),
        "spread": 0.0 if plain is None else round(float(high - low) / plain, 3),
        "p90": round(float(np.percentile(times, 90)), 3),
        "p99": round(float(np.percentile(times, 99)), 3),
        "max": round(max(times), 3),
    }


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        time.sleep(_LOOK_S)
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"bench recovery: {what} did not come within {_LIMIT_S:g} s")


def main(arguments: list[str]) -> None:
    """Measure in pieces.

    ``python -m ftrt.bench.recovery VARIANT SECONDS FILE`` adds what it measures to a file of JSON
    lines; with FILE alone it prints the rows of what is there.
    """
    path = Path(arguments[-1])
    if len(arguments) > 1:
        name, seconds = arguments[0], float(arguments[1])
        found = freezes() if name == "freeze" else measure(name, seconds, _MANY)
        with open(path, "a") as file:
            file.writelines(json.dumps({"variant": name, **sample}) + "\n" for sample in found)
    samples: dict[str, list[Sample]] = {}
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        samples.setdefault(sample.pop("variant"), []).append(sample)
    print(json.dumps({"rows": rows_of(samples)}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
