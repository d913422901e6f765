"""The page of a campaign's results: ``python -m ftrt.campaign.results DIR > FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_COLUMNS = ("tripped", "ambiguous", "losses", "duplicates", "stale", "empty", "torn")
_HEAD = "| path | fault | bytes | tripped | ambiguous | lost | duplicated | stale | empty | torn |"


def page(summary: dict[str, Any]) -> str:
    """Return the page of a ``campaign.json``, in Markdown."""
    cells = [cell for cell in summary["cells"] if cell["trials"]]
    left = [cell for cell in summary["cells"] if not cell["trials"]]
    parts = ["# The fault campaign: results", f"`{summary['command']}`", _versions(summary)]
    parts.append("What the counters mean: [../campaign.md](../campaign.md).")
    for plane, transport in dict.fromkeys((c["plane"], c["transport"]) for c in cells):
        mine = [c for c in cells if (c["plane"], c["transport"]) == (plane, transport)]
        parts.append(f"## Plane {plane} over {transport}")
        for rule in dict.fromkeys(cell["rule"] for cell in mine):
            parts += _rule(rule, [cell for cell in mine if cell["rule"] == rule])
        parts += ["### Recovery", _recovery(mine)]
    if left:
        parts += ["## Not run yet", ", ".join(f"{_name(c)} {c['rule']}" for c in left)]
    if summary["not_run"]:
        reasons = dict.fromkeys(entry["reason"] for entry in summary["not_run"])
        parts += ["## Cannot run there", "\n".join(f"- {reason}" for reason in reasons)]
    if summary["complaints"]:
        parts += ["## Complaints", "\n".join(f"- {text}" for text in summary["complaints"])]
    return "\n\n".join(parts) + "\n"


def _versions(summary: dict[str, Any]) -> str:
    told = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return f"Seed {summary['seed']}; {told}."


def _rule(rule: str, cells: list[dict[str, Any]]) -> list[str]:
    total = {name: sum(cell[name] for cell in cells) for name in _COLUMNS}
    oracle = {
        name: sum(cell["oracle"][name] for cell in cells) for name in ("losses", "duplicates")
    }
    controls = sum(cell["controls"]["trials"] for cell in cells)
    false = sum(
        value
        for cell in cells
        for name, value in cell["controls"].items()
        if name not in ("trials", "wire_bytes")
    )
    rows = [_row([cell["path"], cell["fault"], cell["size"], *_values(cell)]) for cell in cells]
    rows.append(_row(["all", "", "", *(f"{total[name]:,}" for name in _COLUMNS)]))
    said = (
        f"{total['tripped']:,} tripped faults: {total['losses']} messages lost, "
        f"{total['duplicates']} duplicated ({oracle['losses']} and {oracle['duplicates']} by the "
        f"oracle){_bound(total)}. {controls:,} runs without a fault: "
        f"{f'{false} counted, which must not be' if false else 'all counters zero'}."
    )
    line = "|" + "---|" * (3 + len(_COLUMNS))
    return [f"### Rule {rule}", said, "\n".join([_HEAD, line, *rows])]


def _bound(total: dict[str, int]) -> str:
    if total["losses"] or total["duplicates"] or not total["tripped"]:
        return ""
    return f"; with 95 % confidence below {300 / total['tripped']:.2f} % of the faults"


def _values(cell: dict[str, Any]) -> list[str]:
    return [f"{cell[name]:,}" for name in _COLUMNS]


def _recovery(cells: list[dict[str, Any]]) -> str:
    rows = ["| path | fault | rule | bytes | median | p99 | max | phases (median) |"]
    rows.append("|" + "---|" * 8)
    for cell in cells:
        took = cell["recovery_ms"]
        if took is None:
            continue
        phases = ", ".join(f"{name} {value:.1f}" for name, value in cell["phases_ms"].items())
        times = [f"{took[name]:.1f} ms" for name in ("median", "p99", "max")]
        rows.append(_row([cell["path"], cell["fault"], cell["rule"], cell["size"], *times, phases]))
    return "\n".join(rows)


def _row(values: list[Any]) -> str:
    return f"| {' | '.join(str(value) for value in values)} |"


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['path']} {cell['fault']} {cell['size']}"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads((Path(sys.argv[1]) / "campaign.json").read_text())))
