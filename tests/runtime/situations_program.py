"""What ULFM does to its users, one situation an epoch; four ranks, and a spare for each death.

Each rank goes through the situations of the epochs that it sees, so that a spare that takes over
begins where it came in. A situation ends with its epoch; what it showed is left in a file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.errors import PeerFailed
from ftrt.host.words import Word

VICTIM = 3


def die_in(seconds: float) -> None:
    """SIGKILL to this process from a thread of it, whatever its main thread is in by then."""

    def strike() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=strike).start()


def next_epoch(rt, after: int) -> None:
    rt.wait(lambda: rt.epoch > after, f"the epoch after {after}", 20.0)


def works(rt) -> bool:
    """Whether the communicator of the epoch in force does, at once or in the one after it."""
    from mpi4py import MPI

    for _ in range(20):
        before = rt.epoch
        try:
            return rt.comm.allreduce(rt.rank) == sum(range(rt.size)) and rt.comm.rank == rt.rank
        except (MPI.Exception, PeerFailed):
            next_epoch(rt, before)
    return False


def revoked_while_it_is_made(rt) -> str:
    """Three are inside the making of the communicator when the fourth revokes the epoch."""
    if rt.rank == VICTIM:
        time.sleep(0.2)
        rt.revoke("three wait for me")
        return "revoked"
    try:
        _ = rt.comm
    except PeerFailed:
        return "raised"
    return "made"


def death_while_it_is_made(rt) -> str:
    """Three are inside the making of the communicator when the fourth dies."""
    if rt.rank == VICTIM:
        die_in(0.2)
        time.sleep(10)
    try:
        _ = rt.comm
    except PeerFailed:
        return "raised"
    return "made"


def revoked(rt) -> str:
    """Everybody works on a communicator, and the epoch is revoked under them."""
    from mpi4py import MPI

    comm = rt.comm
    if rt.rank == 0:
        time.sleep(0.1)
        rt.revoke("nobody gets anywhere")
        return "revoked"
    try:
        while True:
            comm.allreduce(1)
    except MPI.Exception:
        return "raised"


def death_beside_a_revoke(rt) -> str:
    """Right behind the revoke a rank dies, so that MPI's world is shrunk while others revoke."""
    if rt.rank == VICTIM:
        die_in(0.0)
        time.sleep(10)
    from mpi4py import MPI

    try:
        while True:
            rt.comm.allreduce(1)
    except (MPI.Exception, PeerFailed):
        return "raised"


def death_in_another_communicator(rt) -> str:
    """Pairs of ranks; a member of one pair dies, and the other pair is not concerned."""
    from mpi4py import MPI

    before, pair = rt.epoch, rt.comm.Split(rt.rank // 2)
    rt.comm.Barrier()
    if rt.rank == VICTIM:
        die_in(0.05)
    try:
        while True:
            pair.allreduce(1)
            # The other pair ends together, in the next epoch, with a call that counts it.
            if rt.rank < 2 and pair.allreduce(int(rt.job.board.epoch > before)) == 2:
                return "went on"
    except MPI.Exception:
        return "raised"


def death_in_a_guarded_communicator(rt) -> str:
    """All work on a copy of the communicator, each with its neighbours alone."""
    from mpi4py import MPI

    ring = rt.guarded(rt.comm.Dup())
    if rt.rank == VICTIM:
        die_in(0.05)
        time.sleep(10)
    try:  # rank 1 talks to no one who dies
        ring.recv(source=(rt.rank + 1) % rt.size if rt.rank != 1 else 0)
    except MPI.Exception:
        return "raised"
    return "received"


def death_while_all_are_in_a_collective(rt) -> str:
    """The victim too: large sums, of which each takes longer than the death."""
    from mpi4py import MPI

    mine, total = np.ones(1 << 20), np.empty(1 << 20)
    try:
        comm = rt.comm
        comm.Barrier()
        if rt.rank == VICTIM:
            die_in(0.05)
        while True:
            comm.Allreduce(mine, total)
            assert total[0] == total[-1] == rt.size
    except (MPI.Exception, PeerFailed):
        return "raised"


def a_collective_that_does_not_end(rt) -> str:
    """The epoch ends, and one rank is inside a call on its communicator that never returns."""
    from mpi4py import MPI

    try:
        comm = rt.comm
        if rt.rank == 1:
            threading.Timer(0.3, rt.job.board.set_header, (Word.REVOKED, rt.epoch)).start()
        comm.reduce(1, lambda mine, theirs: time.sleep(0 if rt.rank else 100))
        comm.Barrier()
    except (MPI.Exception, PeerFailed):
        return "raised"
    return "returned"


def until_who_is_in_it_is_replaced(rt) -> str:
    """Rank 0 is in this epoch too, and does nothing in it until its process ends."""
    return "waits"


SITUATIONS = [
    revoked_while_it_is_made,
    death_while_it_is_made,
    revoked,
    death_beside_a_revoke,
    death_in_another_communicator,
    death_in_a_guarded_communicator,
    a_collective_that_does_not_end,
    until_who_is_in_it_is_replaced,
    # The last one: a large sum may be left hanging by Open MPI, and costs a death more then.
    death_while_all_are_in_a_collective,
]


def main(directory: str, *names: str) -> None:
    situations = [globals()[name] for name in names] or SITUATIONS
    with ftrt.init() as rt:
        while rt.epoch <= len(situations):
            epoch = rt.epoch
            situation = situations[epoch - 1]
            said = situation(rt)
            (Path(directory) / f"{epoch}-{situation.__name__}-{rt.rank}").write_text(said)
            next_epoch(rt, epoch)
        (Path(directory) / f"works-{rt.rank}").write_text(str(works(rt)))


if __name__ == "__main__":
    main(*sys.argv[1:])
