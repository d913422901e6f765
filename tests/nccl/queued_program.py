"""A receiver that dies while kernels that read what it has consumed are still queued on its GPU.

Rank 0 sends MESSAGES numbers to rank 1. Rank 1 queues slow work on the application's stream for
each message, commits on the host without waiting for it, and kills itself right after commit DIE,
with work left in the stream: it writes down what was left. Its successor goes on from the state.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.oracle import Effects

MESSAGES, DIE, SLOW_S = 60, 30, 0.05


def queue_slow_work(device, array):
    """A kernel of the application that reads a message and takes its time."""
    if type(device).__name__ == "FakeDevice":
        device.application().put(lambda: time.sleep(SLOW_S))
        return
    import cupy

    block = cupy.ones(1 << 26, cupy.float32)
    for _ in range(200):
        block *= array.ravel()[0]


def main(directory: Path) -> None:
    """One rank."""
    with ftrt.init() as rt:
        if rt.rank == 0:
            out = rt.sender("numbers", to=1, replay=lambda seq: rt.to_plane(np.full(4, seq)))
            with out:
                while out.next_seq <= MESSAGES:
                    out.send(rt.to_plane(np.full(4, out.next_seq)))
            return
        if os.environ.get("NCCL_NVLS_ENABLE") != "0":
            raise RuntimeError("multicast was switched off in the environment, and is not here")
        state = rt.restore() or {}
        total, device = int(state.get("total", 0)), rt.job.plane.device
        with Effects(directory / "effects", rt.rank) as effects:
            for message in rt.receiver("numbers", source=0):
                effects.begin("numbers", 0, message.seq)
                with message.consume() as effect:
                    total += int(rt.to_host(message.array)[0])
                    effect["total"] = total
                    queue_slow_work(device, message.array)
                effects.committed("numbers", 0, message.seq)
                if message.seq == DIE and rt.role is not ftrt.Role.RECOVERED:
                    busy = not device.idle(device.application())
                    (directory / "busy").write_text(str(busy))
                    os.kill(os.getpid(), signal.SIGKILL)
        if total != MESSAGES * (MESSAGES + 1) // 2:
            raise RuntimeError(f"the sum is {total}")
        (directory / "role").write_text(rt.role.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
