"""Throughput of a stream over MPI with shared memory switched off, against windowed MPI."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ftrt.errors import UsageError

SIZES = ((16, 1024, 1 << 19), (65536, 1, 2048), (1 << 20, 1, 160))
RAW_WINDOWS = (8, 32)
OUR_SLOTS = 16
_YARDSTICKS = {
    "bare": "raw bare",
    "reads": "raw whose consumer reads",
    "new": "raw of new messages that are read",
}
STARTS = 3
# Open MPI's shared-memory transports are off as well: both sides go over TCP.
FLAGS = ["--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm", "--mca", "pml", "ob1"]
FLAGS += ["--mca", "btl", "self,tcp"]


def rows(plane: str = "host", budget_s: float = 20.0) -> list[dict]:
    """Rows of the benchmark: microseconds a message, medians over several process starts."""
    if plane != "host":
        raise UsageError(f"no MPI benchmark of plane {plane}: use --plane host")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, *as_root, *FLAGS, "-n", "2", sys.executable, __file__]
    starts = [_run([*command, str(budget_s / STARTS)], budget_s) for _ in range(STARTS)]
    return [_row(runs) for runs in zip(*starts, strict=True)]


def _run(command: list[str], budget_s: float) -> list[dict]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * budget_s + 60)
    if done.returncode:
        raise UsageError(f"the benchmark ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _row(runs: tuple[dict, ...]) -> dict:
    """Median of the process starts; the spread is that of raw over all its repeats."""
    raws = [value for run in runs for value in run["raw"]]
    raw = statistics.median(statistics.median(run["raw"]) for run in runs)
    ours = statistics.median(statistics.median(run["ours"]) for run in runs)
    ratios = [statistics.median(run["raw"]) / statistics.median(run["ours"]) for run in runs]
    return {
        "what": runs[0]["what"],
        "size": runs[0]["size"],
        "unit": "us/message",
        "raw": raw,
        "ftrt": ours,
        "ratio": statistics.median(ratios),
        "spread": (max(raws) - min(raws)) / raw,
    }


def _raw(comm, size: int, frames: int, window: int, kind: str) -> None:
    """Move frames; a message that is ``new`` was filled just before, all but ``bare`` are read."""
    buffers, news = np.zeros((window, size), np.uint8), np.ones((window, size), np.uint8)
    reads, writes = kind != "bare", kind == "new" and comm.rank == 0
    begin = comm.Isend if comm.rank == 0 else comm.Irecv

    def act(slot: int):
        if writes:
            np.copyto(buffers[slot], news[slot])
        return begin(buffers[slot], 1 - comm.rank, 1)

    requests = [act(i) for i in range(min(window, frames))]
    for i in range(frames):
        slot = i % window
        requests[slot].Wait()
        if comm.rank and reads:
            buffers[slot].view(np.uint64).sum()
        if i + window < frames:
            requests[slot] = act(slot)


def _ours(end, sends: bool, size: int, batch: int, frames: int, start: int) -> None:
    if sends:
        records = np.zeros((batch, size), np.uint8)
        send, payload = (end.try_send_batch, records) if batch > 1 else (end.try_send, records[0])
        for i in range(start, start + frames):
            while not send(i * batch, payload, 1):
                pass
        while end.frames_released < end.frames_sent:
            pass
        return
    for _ in range(frames):
        while (frame := end.poll()) is None:
            pass
        end.release(frame.number)
    end.serve()


def _timed(comm, work, *arguments) -> float:
    comm.Barrier()
    start = time.perf_counter()
    work(*arguments)
    comm.Barrier()
    return time.perf_counter() - start


def _measure(world, case: int, repeats: int) -> dict[str, list[float]]:
    from ftrt.transport.mpi_channel import TAGS, RecvMpi, SendMpi

    size, batch, messages = SIZES[case]
    comm, kind = world.comm, SendMpi if world.rank == 0 else RecvMpi
    tag = TAGS * (case + 1)
    end = kind(world.wire, 1 - world.rank, tag, slots=OUR_SLOTS, slot_bytes=size * batch)
    frames = messages // batch
    times: dict[str, list[float]] = {"bare": [], "reads": [], "new": [], "ours": []}
    for repeat in range(repeats):
        for name in ("bare", "reads", "new"):
            raws = [
                _timed(comm, _raw, comm, size * batch, frames, window, name)
                for window in RAW_WINDOWS
            ]
            times[name].append(min(raws) / messages * 1e6)
        taken = _timed(comm, _ours, end, world.rank == 0, size, batch, frames, repeat * frames)
        times["ours"].append(taken / messages * 1e6)
    return times


def main(budget_s: float) -> None:
    """One rank's part of one process start: a list of cases."""
    from ftrt.mpi import World

    world, cases = World(data_over_mpi=True), []
    repeats = max(3, min(15, int(budget_s)))
    for case, (size, batch, _) in enumerate(SIZES):
        times = _measure(world, case, repeats)
        for name, raw in _YARDSTICKS.items():
            what = f"over MPI, shared memory off, {raw}"
            what += f", batches of {batch}" if batch > 1 else ""
            cases.append({"what": what, "size": size, "raw": times[name], "ours": times["ours"]})
    if world.rank == 0:
        print(json.dumps(cases), flush=True)
    world.comm.Barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]))
