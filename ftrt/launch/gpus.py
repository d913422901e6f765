"""What ``ftrt run --plane nccl`` looks at before anything is started, and says at the start."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from ftrt.errors import UsageError
from ftrt.transport.nccl import loading, placement
from ftrt.transport.nccl.capabilities import (
    FEATURES,
    Capabilities,
    cuda_mismatch,
    cuda_note,
    environment_notes,
)
from ftrt.transport.nccl.settings import Settings

#: MiB of GPU memory that a connected pair of processes costs each of them beside its slots: an
#: estimate, docs/results/nccl.md has no measurement of it yet.
PAIR_MIB = 40


class Gpus(NamedTuple):
    """What there is to run on.

    Attributes
    ----------
    number : int
        GPUs of this host.
    said : tuple of str
        What is lost with this library, and what its CUDA is beside the driver's.
    """

    number: int = 0
    said: tuple[str, ...] = ()


def check(ranks: int, standby: int) -> Gpus:
    """The GPUs of this host, and what its NCCL lacks.

    Raises
    ------
    UsageError
        The plane cannot work here; the text says what to install, or to type.
    """
    if not 0 <= standby <= 8:
        raise UsageError(f"--standby {standby}: 0 to 8 communicators for each peer")
    settings = Settings.of()
    said = _fake(settings) if settings.fake else _real(settings)
    count = placement.count_gpus(ranks)
    placement.check(ranks, count)
    return Gpus(count, said)


def _fake(settings: Settings) -> tuple[str, ...]:
    there = Capabilities("fake", 0, frozenset(FEATURES) - settings.without)
    return tuple(there.losses())


def _real(settings: Settings) -> tuple[str, ...]:
    if settings.path:  # whatever else is missing, this was named
        loading.load(settings.path)
    missing = [m for m in ("cupy", "numba_cuda") if importlib.util.find_spec(m) is None]
    if missing:
        raise UsageError(
            f"--plane nccl needs {' and '.join(missing)}, not installed here: type "
            "`pip install 'ftrt[cuda12]'` (or cuda13), or use --plane host"
        )
    loaded = loading.load()
    driver = loading.driver_version()
    built_for = {"CuPy": loading.cuda_of_cupy(), "NCCL": loading.cuda_of(loaded.file)}
    for what, major in built_for.items():
        problem = cuda_mismatch(major, driver, what) if major and driver else None
        if problem:
            raise UsageError(problem)
    note = cuda_note(built_for, driver)
    return (*loaded.capabilities.losses(), *([note] if note else []))


def lines(ranks: int, spares: int, gpus: Gpus, standby: int) -> list[str]:
    """What the start of a run says of the GPUs: who can replace whom, and what standby costs."""
    said = []
    for row in placement.table(ranks, spares, gpus.number):
        names = ", ".join(map(str, row.replaces))
        said.append(f"spare {row.spare} is on GPU {row.gpu} and can replace rank {names}")
    left = placement.say_what_is_not_covered(ranks, spares, gpus.number)
    if left:
        said.append(left)
    if standby:
        said.append(
            f"standby communicators: {standby} for each peer and spare, about {PAIR_MIB} MiB of "
            "GPU memory each; --standby 0 turns them off"
        )
    else:
        said.append("no standby communicators: after a fault one is made first")
    return [*said, *gpus.said, *environment_notes(os.environ)]
