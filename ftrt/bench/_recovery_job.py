"""The job that ``ftrt bench recovery`` kills: a stream, and a receiver with state.

``_recovery_job.py STOP STATE_BYTES BURDEN`` streams until the file STOP exists. Messages wait at
the receiver, whose work takes longer than the sender's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.bench._burden import burden

_SMALL = 128
#: Slow enough that a window lasts for longer than any burden keeps the sender.
_WORK_S = 0.005


def _payload(seq: int) -> np.ndarray:
    return np.full(8, seq, np.uint64)


def main(stop: Path, state_bytes: int, name: str) -> None:
    """One rank: 0 sends, 1 receives."""
    with ftrt.init() as rt:
        if rt.rank == 0:
            burden(name)

            def replay(seq: int):
                return rt.to_plane(_payload(seq))

            with rt.sender("load", to=1, replay=replay, slot_bytes=256) as out:
                while not stop.exists():
                    out.send(replay(out.next_seq))
        else:
            before = rt.restore() or {"sum": np.zeros(_SMALL, np.uint64)}
            total = before["sum"].copy()
            for message in rt.receiver("load", source=0):
                with message.consume() as effect:
                    total[0] += np.uint64(message.seq)
                    effect["sum"] = total
                    if "state" not in before and state_bytes > total.nbytes:
                        before["state"] = effect["state"] = np.ones(state_bytes // 8)
                time.sleep(_WORK_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
