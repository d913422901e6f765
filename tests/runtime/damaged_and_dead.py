"""Rank 1 lets frames lie; one of them is damaged; rank 0, who sent them, is killed.

``head`` and ``middle`` damage a frame while the sender lives, ``sealed`` after it was replaced,
``word`` then damages the word that says which frame a slot holds.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from two_receivers import wait_for

import ftrt
from ftrt import atomics
from ftrt.host.board import Field
from ftrt.oracle import Effects
from ftrt.transport import layout
from ftrt.transport.layout import PAGE
from ftrt.transport.ring_admin import flip_bits

WINDOW, MESSAGES, PAUSE_AT = 6, 60, 10


def made(seq: int) -> np.ndarray:
    return np.full(8, seq, np.int64)


def strike(rt, ring, where: str) -> None:
    """The window is full: the sender waits for credit, and is killed there."""
    wait_for(lambda: ring._map[layout.W_SENT] == PAUSE_AT + WINDOW)
    frame = PAUSE_AT + (1 if where == "head" else 3)
    if where in ("head", "middle"):
        flip_bits(ring.path, frame)
    os.kill(rt.job.board.get(rt.job.processes[0], Field.PID), signal.SIGKILL)
    wait_for(lambda: rt.job.moved_on)
    if where == "sealed":
        flip_bits(ring.path, frame)
    if where == "word":
        at = PAGE // 8 + (frame - 1) % WINDOW * ring._stride
        atomics.store(ring._words, at, 0)  # as if it had never been published


def main(directory: str, how: str, where: str) -> None:
    with ftrt.init() as rt, Effects(Path(directory) / "effects", rt.rank) as effects:
        if rt.rank == 0:
            again = {"replay": made} if how == "replay" else {"spool": True}
            with rt.sender("numbers", to=1, window=WINDOW, slot_bytes=64, **again) as out:
                for seq in range(out.next_seq, MESSAGES + 1):
                    out.send(made(seq))
            return
        total, receiver = 0, rt.receiver("numbers", source=0)
        for message in receiver:
            assert (message.array == message.seq).all()
            effects.begin("numbers", 0, message.seq)
            with message.consume() as effect:
                total = effect["sum"] = total + message.seq
            effects.committed("numbers", 0, message.seq)
            if message.seq == PAUSE_AT:
                strike(rt, receiver._ring, where)
        print("digest", hashlib.sha256(str(total).encode()).hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
