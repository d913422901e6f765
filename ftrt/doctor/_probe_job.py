"""Two processes: a ring, or a death that the other has to see. Rank 0 tells in a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

ROUNDS = 200
_LIMIT_S = 20.0


def ring(comm: MPI.Comm) -> dict:
    """Send around; the median of many rounds."""
    rank, size = comm.rank, comm.size
    token, times = bytearray(16), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        if size > 1:
            if rank == 0:
                comm.Send(token, dest=1)
                comm.Recv(token, source=size - 1)
            else:
                comm.Recv(token, source=rank - 1)
                comm.Send(token, dest=(rank + 1) % size)
        times.append(time.perf_counter() - begin)
    library = MPI.Get_library_version().split(",")[0].splitlines()[0]
    return {"size": size, "round_us": sorted(times)[ROUNDS // 2] * 1e6, "library": library}


def death(comm: MPI.Comm) -> dict:
    """Rank 1 is killed; rank 0 goes on and sees it."""
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Barrier()
    begin = time.monotonic()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while time.monotonic() - begin < _LIMIT_S:
        with contextlib.suppress(MPI.Exception):
            comm.Iprobe()  # failures are noticed by those who drive progress
        if comm.Get_failed().Get_size():
            return {"seen_ms": (time.monotonic() - begin) * 1e3}
        time.sleep(0.0005)
    return {"error": f"a killed peer was not seen within {_LIMIT_S:.0f} s"}


def main() -> None:
    """Do what the first argument says."""
    comm = MPI.COMM_WORLD
    found = {"ring": ring, "death": death}[sys.argv[1]](comm)
    if comm.rank == 0:
        path = Path(sys.argv[2])
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, path)
    if sys.argv[1] == "death":
        os._exit(0)  # MPI_Finalize hangs after a failure


if __name__ == "__main__":
    main()
