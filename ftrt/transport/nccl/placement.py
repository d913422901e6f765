"""Which GPU each process of a job uses, and whom a spare can replace there.

NCCL refuses two ranks of one communicator on one GPU. So a spare can take over from a victim only
where none of the victim's peers shares the spare's GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import NamedTuple

from ftrt.errors import UsageError
from ftrt.transport.nccl.settings import Settings


def count_gpus(ranks: int) -> int:
    """GPUs that a process started from here sees; asks the driver, without any library of CUDA's.

    With ``FTRT_NCCL_LIBRARY=fake`` as many as ``FTRT_FAKE_GPUS`` says, or one for each rank. With
    ``FTRT_SHARE_GPU=1`` the GPUs that are there count as one for each rank: see :func:`share`.
    """
    settings = Settings.of()
    if settings.share:
        return max(ranks, physical_gpus())
    if settings.fake:
        return ranks if settings.fake_gpus is None else settings.fake_gpus
    return physical_gpus()


def physical_gpus() -> int:
    """GPUs that the driver shows to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def share(place: int) -> int:
    """The GPU for a place where several ranks share one, for trials on a host with too few.

    NCCL refuses two ranks on one GPU of one host. A name of its own for each place makes it take
    them for hosts, and go over sockets: right, and slow.
    """
    os.environ["NCCL_HOSTID"] = f"ftrt-place-{place}"
    return place % max(1, physical_gpus())


def gpu_of(process: int, ranks: int, gpus: int) -> int:
    """GPU of a process: ranks from the first on, spares from the free ones or the last on.

    Parameters
    ----------
    process : int
        Number of the process; those from ``ranks`` on are spares.
    ranks, gpus : int
        Ranks of the job and GPUs of the host.
    """
    if process < ranks:
        return process % gpus
    if process < gpus:
        return process
    return (ranks - 1 - (process - max(ranks, gpus))) % min(ranks, gpus)


def check(ranks: int, gpus: int) -> None:
    """Refuse more ranks than GPUs.

    Raises
    ------
    UsageError
        NCCL would refuse, amid the start of the job.
    """
    if gpus < 1:
        raise UsageError("the nccl plane needs a GPU and this host has none: use --plane host")
    if ranks > gpus:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs and this host has {gpus}: NCCL refuses two ranks of "
            f"a communicator on one GPU; type -n {gpus}, or use --plane host"
        )


def replaceable(spare: int, ranks: int, gpus: int) -> list[int]:
    """Ranks that a spare can replace whoever their peers are: those on its own GPU, or all."""
    own = gpu_of(spare, ranks, gpus)
    shared = [rank for rank in range(ranks) if gpu_of(rank, ranks, gpus) == own]
    return shared or list(range(ranks))


def uncovered(ranks: int, spares: int, gpus: int) -> list[int]:
    """Ranks that no spare can replace over the nccl plane."""
    covered: set[int] = set()
    for spare in range(ranks, ranks + spares):
        covered.update(replaceable(spare, ranks, gpus))
    return [rank for rank in range(ranks) if rank not in covered]


class Place(NamedTuple):
    """Where a spare is, and whom it can replace."""

    spare: int
    gpu: int
    replaces: list[int]


def table(ranks: int, spares: int, gpus: int) -> list[Place]:
    """One row for each spare."""
    return [
        Place(spare - ranks, gpu_of(spare, ranks, gpus), replaceable(spare, ranks, gpus))
        for spare in range(ranks, ranks + spares)
    ]


def say_what_is_not_covered(ranks: int, spares: int, gpus: int) -> str | None:
    """A sentence for the start of a run, None if every rank has a spare that can replace it."""
    left: Iterable[int] = uncovered(ranks, spares, gpus)
    names = ", ".join(map(str, left))
    if not names or not spares:
        return None
    return (
        f"no spare can replace rank {names}: its peers' GPUs are taken; such a death needs "
        "--restarts, or one spare for each rank"
    )
