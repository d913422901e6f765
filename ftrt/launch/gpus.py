"""What ``ftrt run --plane nccl`` looks at before anything is started, and says at the start."""

from __future__ import annotations

import importlib.util
import os

from ftrt.errors import UsageError
from ftrt.transport.nccl import placement
from ftrt.transport.nccl.capabilities import environment_notes

#: Bytes of GPU memory that a connected pair of processes costs each of them beside its slots, as
#: measured with NCCL 2.32.3 on H200 (docs/results/nccl.md).
PAIR_MIB = 40


def check(ranks: int, standby: int) -> int:
    """The number of GPUs of this host.

    Raises
    ------
    UsageError
        The plane cannot work here; the text says what to install, or to type.
    """
    if not 0 <= standby <= 8:
        raise UsageError(f"--standby {standby}: 0 to 8 communicators for each peer")
    if os.environ.get("FTRT_NCCL_LIBRARY") != "fake":
        missing = [m for m in ("cupy", "numba_cuda") if importlib.util.find_spec(m) is None]
        if missing:
            raise UsageError(
                f"--plane nccl needs {' and '.join(missing)}, not installed here: type "
                "`pip install 'ftrt[cuda12]'` (or cuda13), or use --plane host"
            )
    gpus = placement.count_gpus(ranks)
    placement.check(ranks, gpus)
    return gpus


def lines(ranks: int, spares: int, gpus: int, standby: int) -> list[str]:
    """What the start of a run says of the GPUs: who can replace whom, and what standby costs."""
    said = []
    for row in placement.table(ranks, spares, gpus):
        names = ", ".join(map(str, row.replaces))
        said.append(f"spare {row.spare} is on GPU {row.gpu} and can replace rank {names}")
    left = placement.say_what_is_not_covered(ranks, spares, gpus)
    if left:
        said.append(left)
    if standby:
        said.append(
            f"standby communicators: {standby} for each peer and spare, about {PAIR_MIB} MiB of "
            "GPU memory each; --standby 0 turns them off"
        )
    else:
        said.append("no standby communicators: after a fault one is made first")
    return [*said, *environment_notes(os.environ)]
