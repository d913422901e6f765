"""Rank 0 spools to ranks 1 and 2. It syncs nothing by itself for an hour, and rank 2 is slow."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.mpi import world_rank_of_environment
from ftrt.oracle import Effects

WINDOW, MESSAGES = 32, 400


def send(rt) -> None:
    with rt.sender("numbers", to=[1, 2], spool=True, window=WINDOW, slot_bytes=4096) as out:
        while out.next_seq <= MESSAGES:
            life = rt.since_epoch  # what was lost could not be made again
            out.send(np.array([out.next_seq, life] + [0] * 500))


def receive(rt, effects: Effects) -> None:
    state = rt.restore() or {"sum": 0, "text": ""}
    for message in rt.receiver("numbers", source=0):
        number, life = message.array[:2].tolist()
        assert number == message.seq
        effects.begin("numbers", 0, message.seq)
        text = hashlib.sha256(f"{state['text']} {number} {life}".encode()).hexdigest()
        state = {"sum": state["sum"] + number, "text": text}
        with message.consume() as effect:
            effect.update(state)
        effects.committed("numbers", 0, message.seq)
        time.sleep(0.004 if rt.rank == 2 else 0.001)
    print("text", rt.rank, state["text"], flush=True)


def main(directory: str) -> None:
    if world_rank_of_environment() == 0:
        os.environ["FTRT_SYNC_INTERVAL_S"] = "3600"
    with ftrt.init() as rt, Effects(Path(directory) / "effects", rt.rank) as effects:
        if rt.rank == 0:
            send(rt)
        else:
            receive(rt, effects)


if __name__ == "__main__":
    main(*sys.argv[1:])
