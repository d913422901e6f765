"""Rank 0 has sent all and left its block; rank 1 kills it at some point of its own work.

``needed``: rank 1 has nothing yet, and finds a slot damaged. ``early``: it has read a few messages.
``settled``: it has consumed all.
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
from ftrt.host.board import Field, Phase
from ftrt.mpi import world_rank_of_environment
from ftrt.oracle import Effects
from ftrt.transport.ring_admin import flip_bits

MESSAGES = 12
KILL_AT = {"needed": 1, "early": 4, "settled": MESSAGES}


def made(seq: int) -> np.ndarray:
    return np.full(8, seq, np.int64)


def strike(rt, receiver, where: str) -> None:
    """Rank 0 sleeps in the end of its work by now, and is killed there."""
    process = rt.job.processes[0]
    last = Phase.FINISHED if where == "settled" else Phase.LEAVING
    wait_for(lambda: rt.job.board.get(process, Field.PHASE) in (Phase.FINISHED, last))
    if where == "needed":
        flip_bits(receiver._ring.path, MESSAGES - 2)
    os.kill(rt.job.board.get(process, Field.PID), signal.SIGKILL)
    if where == "early":  # what is under way already needs nobody: it may be over before the agent
        wait_for(lambda: rt.job.board.epoch > 1)
    if where == "settled":
        wait_for(lambda: not Path(f"/proc/{rt.job.board.get(process, Field.PID)}/exe").exists())


def main(directory: str, where: str) -> None:
    if world_rank_of_environment() == 0:
        os.environ["FTRT_SYNC_INTERVAL_S"] = "3600"  # in class power: its last sync is the first
    with ftrt.init() as rt, Effects(Path(directory) / "effects", rt.rank) as effects:
        if rt.rank == 0:
            with rt.sender("numbers", to=1, replay=made) as out:
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
            if message.seq == KILL_AT[where]:
                message = None  # its slot is given back
                strike(rt, receiver, where)
        print("digest", hashlib.sha256(str(total).encode()).hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
