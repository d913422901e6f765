"""Where a cell runs here: what carries its data, and why it cannot."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ftrt.campaign.cells import Cell
from ftrt.errors import FtrtError


@dataclass(frozen=True)
class Place:
    """Attributes: ``transport`` carries the data, ``reason`` says why nothing can be run here."""

    transport: str
    reason: str = ""


def place_of(cell: Cell) -> Place:
    """Where a cell runs."""
    if cell.plane == "nccl":
        return Place("none", "the nccl plane is not in this version of the campaign")
    if cell.fault == "link":
        return Place("none", "links between network namespaces are not in this version")
    return Place("tcp")


def _gpus() -> str:
    """Why the plane between GPUs has nothing to run on, empty if it has."""
    from ftrt.launch.gpus import check

    try:
        check(2, 1)
    except FtrtError as error:
        return str(error)
    return ""


def library() -> str:
    """The library of the plane between GPUs: a fake one is named in every figure."""
    return os.environ.get("FTRT_NCCL_LIBRARY") or "nccl"
