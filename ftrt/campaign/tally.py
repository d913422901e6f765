"""What the trials of a cell come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ftrt.campaign.cells import Cell
from ftrt.campaign.judge import COUNTERS, sums_of

Line = dict[str, Any]


def bound_of(count: int, trials: int) -> float | None:
    """95 % upper bound of the rate behind a zero in so many trials: 3/n; None if it is no zero."""
    return None if count or not trials else 3.0 / trials


def tally(cell: Cell, transport: str, lines: Sequence[Line]) -> dict[str, Any]:
    """One entry of ``cells`` in ``campaign.json``.

    Parameters
    ----------
    cell : Cell
    transport : str
        What carried the data.
    lines : sequence of dict
        Its trials, controls among them.
    """
    faults = [line for line in lines if not line["control"]]
    tripped = [line for line in faults if line["tripped"]]
    counts, total = sums_of(faults), len(tripped)
    ambiguous = sum(line["ambiguous"] for line in tripped)
    return {
        **cell.to_json(),
        "transport": transport,
        "trials": len(faults),
        "tripped": total,
        "ambiguous": ambiguous,
        "ambiguous_share": round(ambiguous / total, 4) if total else None,
        "sent": sum(line["sent"] for line in faults),
        **{name: counts[name] for name in COUNTERS},
        "bound_loss": bound_of(counts["losses"], total),
        "bound_duplicate": bound_of(counts["duplicates"], total),
        "oracle": {
            "losses": sum(line["oracle_losses"] for line in faults),
            "duplicates": sum(line["oracle_duplicates"] for line in faults),
            "open": sum(line["oracle_open"] for line in faults),
        },
        "wire_bytes": sum(line["wire_bytes"] for line in faults),
        "recovery_ms": spread([line["recovery_ms"] for line in tripped]),
        "phases_ms": phases_of(tripped),
        "controls": controls_of([line for line in lines if line["control"]]),
    }


def controls_of(lines: Sequence[Line]) -> dict[str, Any]:
    """Counters of the runs without a fault; all of them have to be zero."""
    counts = sums_of(list(lines))
    return {
        "trials": len(lines),
        **{name: counts[name] for name in COUNTERS},
        "trips": sum(line["trips"] for line in lines),
        "wire_bytes": sum(line["wire_bytes"] for line in lines),
    }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Median, 99th percentile and maximum of what is there."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    return {
        "median": _at(found, 0.5),
        "p99": _at(found, 0.99),
        "max": round(found[-1], 3),
    }


def phases_of(tripped: Sequence[Line]) -> dict[str, float]:
    """Median of each phase of the recoveries, in the order in which they come."""
    names = dict.fromkeys(name for line in tripped for name in line["phases_ms"])
    return {
        name: _at(sorted(t["phases_ms"][name] for t in tripped if name in t["phases_ms"]), 0.5)
        for name in names
    }


def _at(ordered: Sequence[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, math.floor(part * len(ordered)))], 3)
