"""What a Slurm allocation says of itself, in the environment of what runs in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftrt.errors import UsageError


def slots(environment: Mapping[str, str]) -> int | None:
    """How many tasks the allocation was asked for, None outside of one.

    ``SLURM_TASKS_PER_NODE`` lists them by node, repeated ones counted: ``4(x3),2``.
    """
    listed = environment.get("SLURM_TASKS_PER_NODE", "")
    if "SLURM_JOB_ID" not in environment or not listed:
        return None
    total = 0
    for part in listed.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return None  # a notation that we do not know is no reason to refuse a job
        total += int(match[1]) * int(match[2] or 1)
    return total


def check_slots(ranks: int, spares: int, environment: Mapping[str, str]) -> None:
    """Refuse more processes than the allocation has tasks.

    ``FTRT_OVERSUBSCRIBE=1`` allows it: mpirun would start them, on cores that they share.

    Raises
    ------
    UsageError
        The sentence says what to ask Slurm for.
    """
    have, need = slots(environment), ranks + spares
    if have is None or need <= have or environment.get("FTRT_OVERSUBSCRIBE") == "1":
        return
    raise UsageError(
        f"-n {ranks} and --spares {spares} are {need} processes, and this Slurm allocation has "
        f"{have} tasks: ask for --ntasks={need}, or set FTRT_OVERSUBSCRIBE=1"
    )
