"""Which experiments there are, and the setting that is the paper's unless it is changed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ftrt.errors import UsageError

PLANES = ("host", "nccl")
PATHS = ("eager", "graph", "revoke")
FAULTS = ("kill", "abort", "pause", "link")
RULES = ("completion", "consumption")

#: Messages that may be under way.
WINDOW = 32
#: Messages of a graph, whose sends have one completion, and graphs that may be under way.
GRAPH, GRAPHS = 16, 2
#: Messages that a path without graphs sends at a time; those of a graph leave one by one.
BURST = 8
#: A sender that gets nowhere for so long gives its channel up.
STALL_S = 0.5
PAUSE_MS = (100, 800)
SIZES = (16, 64 * 1024)
#: Runs without a fault in each cell.
CONTROLS = 40


@dataclass(frozen=True)
class Cell:
    """One cell of the table.

    Attributes
    ----------
    plane, path, fault, rule : str
    size : int
        Bytes of a message, without its header.
    """

    plane: str
    path: str
    fault: str
    rule: str
    size: int

    @property
    def name(self) -> str:
        """Its place in the table, in one word."""
        return f"{self.plane}/{self.path}/{self.fault}/{self.rule}/{self.size}"

    @classmethod
    def named(cls, name: str) -> Cell:
        """The cell that has this name."""
        plane, path, fault, rule, size = name.split("/")
        return cls(plane, path, fault, rule, int(size))

    def to_json(self) -> dict[str, Any]:
        """The fields, as in ``campaign.json``."""
        return asdict(self)


def table(
    planes: Sequence[str] = ("host",),
    paths: Sequence[str] = PATHS,
    faults: Sequence[str] = ("kill", "abort", "pause"),
    rules: Sequence[str] = RULES,
    sizes: Sequence[int] = SIZES,
) -> list[Cell]:
    """All cells of these, each once, in the order in which they were named."""
    for size in sizes:
        if size < 8 or size % 8:
            raise UsageError(f"--size {size}: a message is made of words, so a multiple of 8")
    found = itertools.product(planes, paths, faults, rules, sizes)
    return list(dict.fromkeys(Cell(*values) for values in found))
