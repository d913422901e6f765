"""Rank 0 sends to ranks 1 and 2 and is killed when rank 1 has a message that rank 2 lacks."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.oracle import Effects

WINDOW, MESSAGES = 4, 40


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what this job waits for did not come")
        time.sleep(0.001)


def die_once(file: Path) -> None:
    wait_for(file.exists)
    os.kill(os.getpid(), signal.SIGKILL)


def send(rt, steady: bool, batch: int, stuck: Path) -> None:
    def make(seq):
        return np.full(8, seq if steady or seq <= 1 else seq * 1_000_000 + os.getpid(), np.int64)

    if not stuck.exists():
        threading.Thread(target=die_once, args=[stuck], daemon=True).start()
    more = {"replay": make, "window": WINDOW, "slot_bytes": 64 * batch}
    with rt.sender("numbers", to=[1, 2], **more) as out:
        while out.next_seq <= MESSAGES:
            if batch == 1:
                out.send(make(out.next_seq))
            else:
                out.send_batch(np.stack([make(out.next_seq + row) for row in range(batch)]))


def receive(rt, batch: int, stuck: Path, effects: Effects) -> None:
    total = (rt.restore() or {"sum": 0})["sum"]
    if rt.rank == 2:  # until the sender is stuck on a full window, and then dead
        wait_for(lambda: rt.job.moved_on)
    for message in rt.receiver("numbers", source=0):
        effects.begin("numbers", 0, message.seq)
        with message.consume() as effect:
            total = effect["sum"] = total + int(message.array.sum())
        effects.committed("numbers", 0, message.seq)
        if rt.rank == 1 and message.seq == (WINDOW + 1) * batch:
            stuck.touch()  # one window is with rank 2, and this message is not in it
    if rt.rank == 2:
        print("digest", hashlib.sha256(str(total).encode()).hexdigest(), flush=True)


def main(directory: str, steady: str, batch: str) -> None:
    stuck = Path(directory) / "stuck"
    with ftrt.init() as rt, Effects(Path(directory) / "effects", rt.rank) as effects:
        if rt.rank == 0:
            send(rt, steady == "steady", int(batch), stuck)
        else:
            receive(rt, int(batch), stuck, effects)


if __name__ == "__main__":
    main(*sys.argv[1:])
