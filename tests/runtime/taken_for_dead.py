"""Rank 1 is taken for dead though its process lives, and does all it can to go on.

``fenced``: it is stopped inside a commit, replaced, and only then continued; what it registered of
itself names no process here, as if it ran in a container of its own, so that nobody can kill it.
``exec``: it goes on as another program; rank 0 has called init() in a thread that has ended.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))
from kill_points import open_commit

import ftrt
from ftrt.host import libc
from ftrt.ledger import steps
from ftrt.mpi import world_rank_of_environment
from ftrt.oracle import Effects
from ftrt.runtime import hot  # noqa: F401 (it has to know the compiled commit beforehand)

MESSAGES, HELD, RESUMED = 300, 40, 120


class StopInside:
    """Stops this process between the look at the epoch and the store of a commit."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, name: str) -> None:
        if self.armed and name == "commit.swap":
            self.armed = False
            os.kill(os.getpid(), signal.SIGSTOP)


def make(seq: int) -> np.ndarray:
    return np.full(4, seq)


def join(mode: str):
    if mode != "exec" or world_rank_of_environment() != 0:
        return ftrt.init()
    made: list = []
    thread = threading.Thread(target=lambda: made.append(ftrt.init()))
    thread.start()
    thread.join()
    return made[0]


def send(rt, mode: str, folder: Path) -> None:
    """Rank 0; continues the process that was replaced once its successor is well on its way."""
    with rt.sender("numbers", to=1, replay=make, window=8) as out:
        while out.next_seq <= MESSAGES:
            out.send(make(out.next_seq))
            held = folder / "held"
            if out.next_seq == RESUMED and mode == "fenced" and held.exists():
                pid = int(held.read_text())
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                (folder / "before").write_text(f"{state} {rt.epoch}")
                os.kill(pid, signal.SIGCONT)
                limit = time.monotonic() + 20
                while not (folder / "fenced").exists() and time.monotonic() < limit:
                    time.sleep(0.01)


def receive(rt, mode: str, folder: Path, stop: StopInside) -> None:
    total = (rt.restore() or {"total": 0})["total"]
    with Effects(folder / "effects", 1) as effects:
        for message in rt.receiver("numbers", source=0):
            if message.seq == HELD and rt.role is ftrt.Role.INITIAL:
                (folder / "held").write_text(str(os.getpid()))
                if mode == "exec":
                    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
                stop.armed = True
            effects.begin("numbers", 0, message.seq)
            with message.consume() as effect:
                total = effect["total"] = total + int(message.array[0])
            effects.committed("numbers", 0, message.seq)
    print("digest", hashlib.sha256(str(total).encode()).hexdigest(), flush=True)
    assert total == MESSAGES * (MESSAGES + 1) // 2


def main(mode: str, directory: str) -> None:
    folder, stop = Path(directory), StopInside()
    if mode == "fenced" and world_rank_of_environment() == 1:
        open_commit()
        steps.install(stop)
        libc.process_start_ticks = lambda pid: 1
    with join(mode) as rt:
        if rt.rank == 0:
            send(rt, mode, folder)
            return
        try:
            receive(rt, mode, folder, stop)
        except ftrt.Fenced as fenced:
            (folder / "fenced").write_text(str(fenced))
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
