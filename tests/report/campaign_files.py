"""Writes the files of a campaign as ``ftrt campaign`` does, with counts of a seeded generator."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATHS, RULES = ("eager", "graph", "revoke"), ("completion", "consumption")
PHASES = {
    "kill": ("detect", "close", "record", "publish", "resume"),
    "abort": ("detect", "rebuild", "resume"),
    "pause": ("detect", "rebuild", "resume"),
}
COUNTERS = ("losses", "duplicates", "stale", "empty", "torn")


def write_campaign(
    directory: Path, trials: int = 30, plane: str = "host", transport: str = "mpi-tcp"
) -> dict[str, Any]:
    """Write ``campaign.json`` and ``trials.jsonl``; the former is returned."""
    directory.mkdir(parents=True, exist_ok=True)
    cells, lines = [], []
    for index, cell in enumerate(_cells(plane, transport)):
        mine = [_trial(index, cell, number) for number in range(trials)]
        cells.append(_cell(cell, mine))
        lines += mine
        lines.append({**_trial(index, cell, 0), "control": True, "tripped": False})
    link = {"plane": plane, "path": "eager", "fault": "link", "rule": "consumption", "size": 16}
    summary = {
        "command": "ftrt campaign --trials 30 --out <out> & more",
        "seed": 7,
        "versions": {"ftrt": "0.1.0", "python": "3.12"},
        "cells": cells,
        "not_run": [{"cell": link, "reason": "there are no network namespaces here"}],
    }
    (directory / "campaign.json").write_text(json.dumps(summary))
    (directory / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summary


def _cells(plane: str, transport: str) -> Iterator[dict[str, Any]]:
    for fault in PHASES:
        for path in PATHS:
            for rule in RULES:
                for size in (16, 65536):
                    yield {
                        "plane": plane, "transport": transport, "path": path, "fault": fault,
                        "rule": rule, "size": size,
                    }  # fmt: skip


def _trial(index: int, cell: dict[str, Any], number: int) -> dict[str, Any]:
    rng = random.Random(f"{index} {number}")
    tripped = cell["fault"] != "pause" or rng.random() < 0.4
    counts = dict.fromkeys(COUNTERS, 0)
    if tripped:
        counts["stale"] = rng.randint(0, 20)
        counts["empty"] = rng.randint(0, 3)
    if tripped and cell["rule"] == "completion":
        graph = cell["path"] == "graph"
        counts["duplicates" if graph else "losses"] = rng.randint(0, 16 if graph else 8)
    phases: dict[str, float] = {}
    if tripped:
        for name in PHASES[cell["fault"]]:
            slow = name == "detect" and cell["fault"] == "pause"
            phases[name] = round(rng.lognormvariate(6.2 if slow else 0.5, 0.1 if slow else 0.8), 3)
    return {
        **cell,
        "cell": index,
        "trial": number,
        "seed": 7,
        "control": False,
        "tripped": tripped,
        "ambiguous": counts["stale"] > 0,
        "sent": 1024,
        **counts,
        "oracle_losses": counts["losses"],
        "oracle_duplicates": counts["duplicates"],
        "recovery_ms": round(sum(phases.values()), 3) if tripped else None,
        "phases_ms": phases,
        "injected_at_s": rng.random() / 10,
        "wire_bytes": 1024 * (cell["size"] + 48),
    }


def _cell(cell: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, Any]:
    tripped = [trial for trial in trials if trial["tripped"]]
    times = sorted(trial["recovery_ms"] for trial in tripped)
    counts = {name: sum(trial[name] for trial in trials) for name in COUNTERS}
    names = dict.fromkeys(name for trial in tripped for name in trial["phases_ms"])
    return {
        **cell,
        **counts,
        "trials": len(trials),
        "tripped": len(tripped),
        "ambiguous": sum(trial["ambiguous"] for trial in tripped),
        "sent": sum(trial["sent"] for trial in trials),
        "recovery_ms": {"median": statistics.median(times), "p99": times[-1], "max": times[-1]}
        if times
        else None,
        "phases_ms": {
            name: statistics.median(trial["phases_ms"][name] for trial in tripped) for name in names
        },
        "controls": {"trials": 1, **dict.fromkeys(COUNTERS, 0)},
        "bound_loss": None if counts["losses"] or not tripped else 3 / len(tripped),
        "bound_duplicate": None if counts["duplicates"] or not tripped else 3 / len(tripped),
        "wire_bytes": sum(trial["wire_bytes"] for trial in trials),
        "oracle": {"losses": counts["losses"], "duplicates": counts["duplicates"]},
    }
