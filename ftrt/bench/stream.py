"""Throughput of a stream between two ranks of one host, against windowed MPI, in one run."""

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

SIZES = ((16, 1024, 1 << 20), (65536, 1, 2048), (1 << 20, 1, 128))
WINDOWS = (8, 32)
FLAGS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def rows(plane: str = "host", budget_s: float = 20.0) -> list[dict]:
    """Rows of the benchmark: microseconds a message, medians over alternating repeats."""
    if plane != "host":
        raise UsageError(f"no stream benchmark of plane {plane}: use --plane host")
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [str(mpirun), *FLAGS, "-n", "2", sys.executable, __file__, str(budget_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * budget_s + 60)
    if done.returncode:
        raise UsageError(f"the benchmark ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _raw(comm, size, frames, window, reads):
    buffers = np.zeros((window, size), np.uint8)
    act = comm.Isend if comm.rank == 0 else comm.Irecv
    requests = [act(buffers[i], 1 - comm.rank, 1) for i in range(min(window, frames))]
    for i in range(frames):
        slot = i % window
        requests[slot].Wait()
        if comm.rank and reads:
            buffers[slot].view(np.uint64).sum()
        if i + window < frames:
            requests[slot] = act(buffers[slot], 1 - comm.rank, 1)


def _ours(comm, end, size, batch, frames, start):
    if comm.rank == 0:
        records = np.zeros((batch, size), np.uint8)
        for i in range(start, start + frames):
            send = end.try_send_batch if batch > 1 else end.try_send
            payload = records if batch > 1 else records[0]
            while not send(i * batch, payload, 1):
                os.sched_yield()
        return
    for _ in range(frames):
        while (frame := end.poll()) is None:
            os.sched_yield()
        end.release(frame.number)


def _timed(comm, work, *arguments) -> float:
    comm.Barrier()
    start = time.perf_counter()
    work(comm, *arguments)
    comm.Barrier()
    return time.perf_counter() - start


def _measure(comm, size, batch, messages, repeats):
    from ftrt.transport.ring import RecvRing, SendRing

    path = Path("/dev/shm") / f"ftrt-bench-{comm.bcast(os.getpid())}-{size}"
    if comm.rank == 0:
        identity = {"job": "bench", "stream_id": 1, "source": 0, "dest": 1}
        end = SendRing.create(path, slots=8, slot_bytes=size * batch, **identity)
    comm.Barrier()
    if comm.rank == 1:
        end = RecvRing.attach(path)
    comm.Barrier()
    if comm.rank == 0:
        path.unlink()
    frames, sent = messages // batch, 0
    times: dict[str, list[float]] = {"bare": [], "reading": [], "ours": []}
    for _ in range(repeats):
        for name in ("bare", "reading"):
            runs = [
                _timed(comm, _raw, size * batch, frames, window, name == "reading")
                for window in WINDOWS
            ]
            times[name].append(min(runs))
        times["ours"].append(_timed(comm, _ours, end, size, batch, frames, sent))
        sent += frames
    return {name: [t / messages * 1e6 for t in values] for name, values in times.items()}


def _row(size, batch, name, times):
    raw, ours = statistics.median(times[name]), statistics.median(times["ours"])
    spread = (max(times[name]) - min(times[name])) / raw
    what = f"stream, raw {'bare' if name == 'bare' else 'whose consumer reads'}"
    what += f", batches of {batch}" if batch > 1 else ""
    return {
        "what": what,
        "size": size,
        "unit": "us/message",
        "raw": raw,
        "ftrt": ours,
        "ratio": raw / ours,
        "spread": spread,
    }


def main(budget_s: float) -> None:
    """One rank's part."""
    from mpi4py import MPI

    repeats = max(3, min(15, int(budget_s / 1.5)))
    table = []
    for size, batch, messages in SIZES:
        times = _measure(MPI.COMM_WORLD, size, batch, messages, repeats)
        table += [_row(size, batch, name, times) for name in ("bare", "reading")]
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(table), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
