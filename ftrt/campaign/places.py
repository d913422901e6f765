"""Where a cell runs here: what carries its data, and why it cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ftrt.campaign.cells import Cell
from ftrt.campaign.links import reason_without_links
from ftrt.errors import FtrtError
from ftrt.launch.gpus import check


@dataclass(frozen=True)
class Place:
    """Attributes: ``transport`` carries the data, ``reason`` says why nothing can be run here."""

    transport: str
    reason: str = ""


def place_of(cell: Cell) -> Place:
    """Where a cell runs."""
    if cell.fault == "link":
        if cell.plane == "nccl":
            return Place("sockets", "NCCL's sockets under an impaired link: not in this version")
        return Place("tcp", reason_without_links())
    if cell.plane == "host":
        return Place("tcp")
    return Place(transport_of_gpus(), reason_without_gpus())


def reason_without_gpus() -> str:
    """Why two ranks have no GPU each here, empty if they have."""
    try:
        check(2, 1)
    except FtrtError as error:
        return str(error)
    return ""


def transport_of_gpus(environment: Mapping[str, str] = os.environ) -> str:
    """What NCCL goes over by its settings; a fake library is named wherever a figure is."""
    if environment.get("FTRT_NCCL_LIBRARY") == "fake":
        return "fake"
    off = all(environment.get(f"NCCL_{name}_DISABLE") == "1" for name in ("P2P", "SHM"))
    return "sockets" if off or environment.get("FTRT_SHARE_GPU") == "1" else "p2p"
