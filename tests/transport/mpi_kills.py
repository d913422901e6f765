"""Process 0 sends to each of the others in turn, kills it, and goes on sending for a while.

Started by test_mpi_channel.py under mpirun, with the path of a board to make.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from ftrt.errors import PeerFailed
from ftrt.host.board import Board, Field
from ftrt.mpi import Wire, World, leave

DATA, NOTE = 5, 9
SIZES = (40, 700, 9000)
GOES_ON_S = 0.05


def answer(wire: Wire) -> None:
    """Receive whatever comes, and send a note for each."""
    posted, note = [], np.zeros(16, np.uint8)
    while True:
        while len(posted) < 16:
            posted.append(wire.receive(np.zeros(max(SIZES), np.uint8), 0, DATA))
        if wire.done(posted[0]):
            posted.pop(0)
            wire.send(note, 0, NOTE)


def kill_amid(wire: Wire, board: Board, victim: int, chance: random.Random) -> int:
    """Kill ``victim`` amid a stream to it; how many messages it was still offered."""
    data = np.zeros(chance.choice(SIZES), np.uint8)
    notes = [wire.receive(np.zeros(16, np.uint8), victim, NOTE) for _ in range(4)]
    kill_at, offered, until = chance.randrange(20, 60), 0, float("inf")
    sends = []
    while time.monotonic() < until:
        try:
            for _ in range(chance.choice((1, 2, 4, 8, 16))):
                offered += 1
                sends.append(wire.send(data, victim, DATA))
        except PeerFailed:
            pass  # a rank does not stop there: it goes on until the epoch has changed
        if offered >= kill_at and until == float("inf"):
            until = time.monotonic() + GOES_ON_S
            os.kill(board.get(victim, Field.PID), signal.SIGKILL)
        try:
            if wire.done(notes[0]):
                notes.append(wire.receive(np.zeros(16, np.uint8), victim, NOTE))
                notes.pop(0)
        except PeerFailed:
            notes = [wire.receive(np.zeros(16, np.uint8), victim, NOTE)]
        wire.fetch(data, victim, DATA)
    wire.retire(notes, sends, data)
    return offered - kill_at


def main(path: str, seed: str, guarded: str = "guarded") -> None:
    world = World(data_over_mpi=True)
    wire, me = world.wire, world.rank
    if me == 0:
        Board.create(Path(path), world.size, world.size)
    world.comm.Barrier()
    board = Board(Path(path))
    board.own(me)
    board.put(me, Field.PID, os.getpid())
    if guarded == "guarded":
        wire.lives = board.lives
    world.comm.Barrier()
    if me:
        answer(wire)
    chance = random.Random(int(seed))
    for victim in range(1, world.size):
        assert board.lives(victim)
        assert kill_amid(wire, board, victim, chance) > 0
        assert not board.lives(victim)
    print("survived", world.size - 1, flush=True)
    leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
