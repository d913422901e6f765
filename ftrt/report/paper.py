"""The paper's numbers, as data beside ours; what its text does not state stays unknown."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rate:
    """Messages per fault that tripped a recovery.

    Attributes
    ----------
    value : float
    low : float
        Lower end of its 95 % interval.
    high : float
        Upper end; of a zero in n faults it is 3/n.
    at_least : bool
        The paper gives a sum without the number of faults that tripped; this is over all injected.
    """

    value: float
    low: float = 0.0
    high: float = 0.0
    at_least: bool = False

    def __str__(self) -> str:
        if self.at_least:
            return f"≥ {short(self.value)}"
        if not self.value and self.high:
            return f"0 (≤ {short(self.high)})"
        return short(self.value)


def short(value: float) -> str:
    """Two or three digits that count.

    >>> short(0.0142), short(9.05), short(27.43)
    ('0.014', '9.1', '27')
    """
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    if abs(value) < 1:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.1f}" if abs(value) < 20 else f"{value:,.0f}"


@functools.cache
def paper() -> dict[str, Any]:
    """Everything that is in ``paper.json``."""
    return json.loads(Path(__file__).with_name("paper.json").read_text())


def paper_cell(path: str, rule: str, fault: str) -> dict[str, Any]:
    """What the paper says of a cell, empty where it has none."""
    for cell in paper()["cells"]:
        if (cell["path"], cell["rule"], cell["fault"]) == (path, rule, fault):
            return cell
    return {}


def paper_rate(path: str, rule: str, fault: str, what: str) -> Rate | None:
    """Duplicates or losses per fault that tripped, None where the paper's text has no number.

    Parameters
    ----------
    what : {'duplicates', 'losses'}
    """
    cell = paper_cell(path, rule, fault)
    if f"{what}_per_fault" in cell:
        return Rate(cell[f"{what}_per_fault"])
    if what not in cell:
        return None
    if tripped := cell.get("tripped"):
        return Rate(cell[what] / tripped)
    count = cell[what]
    return Rate(count / cell["injected"], at_least=count > 0)
