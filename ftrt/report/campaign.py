"""What a campaign left in its folder, read and put together for figures and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.report.paper import Rate

PATHS = ("eager", "graph", "revoke")
RULES = ("completion", "consumption")
FAULTS = ("kill", "abort", "pause", "link")

_NAMES = ("plane", "path", "fault", "rule", "size", "trials", "tripped", "duplicates", "losses")


@dataclass(frozen=True)
class Group:
    """Cells that one transport carried; the paper's own sizes are pooled, as it pools them.

    Attributes
    ----------
    plane, transport : str
    cells, trials : list of dict
        Of ``campaign.json`` and, controls left out, of ``trials.jsonl``.
    """

    plane: str
    transport: str
    cells: list[dict[str, Any]]
    trials: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """In words."""
        return f"plane {self.plane}" + (f", {self.transport}" if self.transport else "")

    @property
    def slug(self) -> str:
        """Part of a file's name."""
        words = f"{self.plane}-{self.transport}".lower()
        return "".join(c if c.isalnum() else "-" for c in words).strip("-")

    @property
    def faults(self) -> list[str]:
        """Faults of the group, in the paper's order."""
        return _in_order(FAULTS, (cell["fault"] for cell in self.cells))

    def of(self, path: str, rule: str, fault: str) -> list[dict[str, Any]]:
        """Cells of all sizes."""
        return _matching(self.cells, path, rule, fault)

    def tripped(self, path: str, rule: str, fault: str) -> list[dict[str, Any]]:
        """Trials whose fault tripped a recovery."""
        return [t for t in _matching(self.trials, path, rule, fault) if t.get("tripped")]

    def rate(self, path: str, rule: str, fault: str, what: str) -> Rate | None:
        """Duplicates or losses per tripped fault; None where nothing was run or tripped."""
        cells = self.of(path, rule, fault)
        total = sum(cell["tripped"] for cell in cells)
        if not total:
            return None
        value = sum(cell[what] for cell in cells) / total
        if not value:
            return Rate(0.0, high=3.0 / total)
        counts = [trial.get(what, 0) for trial in self.tripped(path, rule, fault)]
        half = 1.96 * _deviation(counts) / math.sqrt(len(counts)) if len(counts) > 1 else 0.0
        return Rate(value, max(0.0, value - half), value + half)

    def recoveries_ms(self, path: str, rule: str, fault: str) -> list[float]:
        """Recovery times, ascending."""
        found = (trial.get("recovery_ms") for trial in self.tripped(path, rule, fault))
        return sorted(float(value) for value in found if value is not None)

    def phases_ms(self, path: str, rule: str, fault: str) -> dict[str, float]:
        """Median of each phase, in the order in which they come."""
        rows = [trial.get("phases_ms") or {} for trial in self.tripped(path, rule, fault)]
        rows = rows or [cell.get("phases_ms") or {} for cell in self.of(path, rule, fault)]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: median([row[name] for row in rows if name in row]) for name in names}


@dataclass(frozen=True)
class Campaign:
    """A campaign as its folder tells it.

    Attributes
    ----------
    groups : list of Group
    cells, not_run : list of dict
    complaints : list of str
        Why the campaign does not hold, empty if it does.
    about : dict
        Command, seed and versions.
    """

    groups: list[Group]
    cells: list[dict[str, Any]]
    not_run: list[dict[str, Any]]
    complaints: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def total(self, name: str, rule: str) -> int:
        """Sum over all cells under a rule."""
        return sum(int(cell.get(name) or 0) for cell in self.cells if cell["rule"] == rule)

    @property
    def disagreements(self) -> int:
        """Cells in which the oracle, which is not the ledger, counted otherwise."""
        return sum(disagrees(cell) for cell in self.cells)


def read_campaign(directory: Path) -> Campaign:
    """Read ``campaign.json`` and, if it is there, ``trials.jsonl``.

    Raises
    ------
    UsageError
        It is not what ``ftrt campaign`` writes.
    """
    path = directory / "campaign.json"
    try:
        summary = json.loads(path.read_text())
        cells = [_checked(cell) for cell in summary["cells"]]
        not_run = [{"cell": dict(e["cell"]), "reason": str(e["reason"])} for e in _not_run(summary)]
        trials = _trials(directory / "trials.jsonl")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"{path} or its trials are not what `ftrt campaign` writes ({what}); run the campaign "
            "again with the same command, it goes on where it was"
        ) from error
    keys = dict.fromkeys((cell["plane"], str(cell.get("transport") or "")) for cell in cells)
    groups = [
        Group(plane, transport, _of(cells, plane, transport), _of(trials, plane, transport))
        for plane, transport in keys
    ]
    about = {name: summary[name] for name in ("command", "seed", "versions") if name in summary}
    return Campaign(groups, cells, not_run, list(summary.get("complaints") or []), about)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def disagrees(cell: dict[str, Any]) -> bool:
    """Whether the oracle's counts of a cell are not the ledger's.

    An effect whose end a kill hid from the oracle is *open* there: it may be of either kind.
    """
    oracle = cell.get("oracle")
    if not oracle:
        return False
    open_ = int(oracle.get("open") or 0)
    return any(
        abs(int(oracle.get(name) or 0) - cell[name]) > open_ for name in ("losses", "duplicates")
    )


def _not_run(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return summary.get("not_run") or []


def _checked(cell: dict[str, Any]) -> dict[str, Any]:
    for name in _NAMES:
        cell[name]
    return cell


def _trials(path: Path) -> list[dict[str, Any]]:
    """Trials whose lines are whole, without the controls."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    lines = [json.loads(line) for line in whole.splitlines() if line.strip()]
    return [line for line in lines if not line.get("control")]


def _of(rows: list[dict[str, Any]], plane: str, transport: str) -> list[dict[str, Any]]:
    return [
        r for r in rows if r.get("plane") == plane and str(r.get("transport") or "") == transport
    ]


def _matching(rows: list[dict[str, Any]], path: str, rule: str, fault: str) -> list[dict[str, Any]]:
    wanted = (path, rule, fault)
    return [row for row in rows if (row.get("path"), row.get("rule"), row.get("fault")) == wanted]


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _in_order(order: Sequence[str], found: Iterable[str]) -> list[str]:
    present = dict.fromkeys(found)
    return [n for n in order if n in present] + [n for n in present if n not in order]
