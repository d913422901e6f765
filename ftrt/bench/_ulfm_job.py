"""Plain ULFM for the same deaths: ``_ulfm_job.py KILLS BURDEN`` prints a JSON list of times.

In each round the last process kills itself; the others, which wait for a message of it, revoke the
communicator, shrink it and agree. Times are from the kill until process 0 is done; it alone has
the burden, as the one survivor of our job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from ftrt.bench._burden import burden
from ftrt.host import libc
from ftrt.mpi import World

#: So long before its death it is told: calls of everybody come between.
_AHEAD_S = {"idle": 0.15, "python": 0.3, "gil": 2.0}


def main(kills: int, name: str) -> None:
    """One process's part."""
    libc.end_with_mpirun()
    world = World()
    from mpi4py import MPI

    comm: Any = world.comm.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    burden(name if comm.rank == 0 else "idle")
    times = []
    for _ in range(kills):
        # All know beforehand when it dies: the first that revokes would end the telling.
        word, last = np.zeros(1), comm.size - 1
        if comm.rank == last:
            word[0] = time.perf_counter() + _AHEAD_S[name]
        comm.Bcast(word, last)
        comm.Barrier()
        if comm.rank == last:
            time.sleep(max(0.0, word[0] - time.perf_counter()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.Recv(np.zeros(1), last, 1)
        except MPI.Exception:
            comm.Revoke()
        comm = comm.Shrink()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        comm.Agree(1)
        times.append((time.perf_counter() - word[0]) * 1e3)
    if comm.rank == 0:
        print(json.dumps(times), flush=True)
    time.sleep(0.2)  # MPI takes whoever leaves for dead
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
