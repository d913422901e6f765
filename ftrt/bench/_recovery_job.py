"""The job that ``ftrt bench recovery`` kills: a stream with 1 KiB of state at the receiver."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import ftrt


def _payload(seq: int) -> np.ndarray:
    return np.full(8, seq, np.uint64)


def main(stop: Path, state_bytes: int) -> None:
    """Stream until the file ``stop`` exists."""
    with ftrt.init() as rt:
        if rt.rank == 0:

            def replay(seq: int):
                return rt.to_plane(_payload(seq))

            with rt.sender("load", to=1, replay=replay) as out:
                while not stop.exists():
                    out.send(replay(out.next_seq))
                    time.sleep(0.0005)
        else:
            state = (rt.restore() or {"state": np.zeros(state_bytes // 8)})["state"].copy()
            for message in rt.receiver("load", source=0):
                with message.consume() as effect:
                    state[0] += message.seq
                    effect["state"] = state


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
