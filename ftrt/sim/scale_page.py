"""The page of what an agreement costs from 4 to 65,536 ranks, with its curves.

``python -m ftrt.sim.scale_page`` writes ``docs/results/agreement-cost.md`` and ``.svg``.
"""

from __future__ import annotations

import math
import platform
import time
from pathlib import Path

from ftrt.sim.scale import (
    DETECT_US,
    GAP_US_PER_BYTE,
    LATENCY_US,
    OVERHEAD_US,
    RECORD_US,
    Cost,
    agree,
    memory_bytes,
)

SIZES = (4, 16, 64, 256, 1024, 4096, 16_384, 65_536)
_WIDTH, _HEIGHT, _MARGIN = 560, 300, 48
_COLOURS = ("#1f5fa8", "#c2501d", "#777777", "#2d8a4e")


def costs() -> list[Cost]:
    """Run every size with 0, 1, 8 and 1 % dead before, and with 1 and 8 deaths inside."""
    found = []
    for ranks in SIZES:
        for dead in sorted({0, 1, 8, -(-ranks // 100)}):
            if dead < ranks // 2:
                found.append(agree(ranks, dead, 0, ranks))
        for inside in (1, 8):
            if inside < ranks // 2:
                found.append(agree(ranks, 0, inside, ranks))
    return found


def page(found: list[Cost], memory: int) -> str:
    """Write the table."""
    lines = [
        "# What an agreement costs",
        "",
        f"`python -m ftrt.sim.scale_page`, {time.strftime('%Y-%m-%d')}, Python "
        f"{platform.python_version()}. The production agreement, one agent a rank, on a simulated "
        f"network: L = {LATENCY_US} us, o = {OVERHEAD_US} us (a 16 B message of mpi4py on two "
        f"cores), G = {GAP_US_PER_BYTE * 1000:g} ns a byte, {RECORD_US:g} us to create the record, "
        f"{DETECT_US:g} us to see a death.",
        "",
        "![delays and time over ranks](agreement-cost.svg)",
        "",
        "| ranks | dead before | die inside | delays | bound | time, us | "
        "messages a rank, mean / max | bound | bytes a rank, mean / max | bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in found:
        depth, messages = cost.bounds()
        calm = not cost.inside
        lines.append(
            f"| {cost.ranks:,} | {cost.dead} | {cost.inside} | {cost.depth} | {depth} | "
            f"{cost.time_us:.0f} | {cost.messages_mean:.1f} / {cost.messages_max} | "
            f"{messages if calm else ''} | {cost.bytes_mean:.0f} / {cost.bytes_max} | "
            f"{cost.bytes_bound() if calm else ''} |"
        )
    lines += [
        "",
        f"The core of the coordinator of {SIZES[-1]:,} ranks, its host's recovery and the table of "
        f"all members in it, has {memory / 2**20:.1f} MiB at most. The bounds are 2 log2(n) + 6 "
        "delays and log2(n) + 4 more for each death inside, 4 log2(n) + 16 messages for deaths "
        "before the start, and the bytes of a rank's own streams' marks "
        f"({max(cost.mark_bytes_max for cost in found)} here) and of who is in and who is out.",
        "",
        "The ranks form a ring of streams. The tree carries names only: a closed ledger is final, "
        "so who takes part says which marks count, and these go between the two ends of a stream "
        "(`ftrt/agree/exchange.py`). A rank is through when it has both. Of the dead a neighbour "
        "reads the ledger, 50 us and two delays after it has the record: that is what rows with "
        "deaths take longer. What a detector's news cost is in the rows with deaths inside; who "
        "sees a death waits for it, which is most of their time.",
        "",
        "ERA, the agreement of ULFM (Herault et al., *Practical scalable consensus for "
        "pseudo-synchronous distributed systems*, SC 2015), also goes up a tree and down again "
        "without a failure, 2 log2(n) delays over a binary tree; it carries one integer. The "
        "record on storage adds the two delays that are seen here above 2 log2(n). "
        "Real processes, ours beside Open MPI's ERA: [agree.md](agree.md).",
        "",
    ]
    return "\n".join(lines)


def picture(found: list[Cost]) -> str:
    """Draw delays, their bound, and the time in tens of us over the ranks."""
    calm = [cost for cost in found if cost.dead == 0 and cost.inside == 0]
    series = (
        ("message delays", [float(cost.depth) for cost in calm]),
        ("time, tens of us", [cost.time_us / 10 for cost in calm]),
        ("2 log2(n) + 6", [float(cost.bounds()[0]) for cost in calm]),
        ("ERA: 2 log2(n)", [2 * math.log2(cost.ranks) for cost in calm]),
    )
    top = max(max(values) for _, values in series)
    span = math.log2(calm[-1].ranks) - math.log2(calm[0].ranks)
    xs = [
        _MARGIN + (_WIDTH - 2 * _MARGIN) * (math.log2(c.ranks) - math.log2(calm[0].ranks)) / span
        for c in calm
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for step in range(0, math.ceil(top) + 1, 10):
        y = _y(step, top)
        parts.append(f'<path d="M{_MARGIN} {y:.1f}H{_WIDTH - _MARGIN}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_MARGIN - 24}" y="{y + 4:.1f}">{step}</text>')
    for x, cost in zip(xs, calm, strict=True):
        parts.append(f'<text x="{x - 14:.1f}" y="{_HEIGHT - 20}">{cost.ranks:,}</text>')
    for number, (name, values) in enumerate(series):
        points = " ".join(f"{x:.1f},{_y(v, top):.1f}" for x, v in zip(xs, values, strict=True))
        colour = _COLOURS[number]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(
            f'<text x="{_MARGIN + 12}" y="{24 + 15 * number}" fill="{colour}">{name}</text>'
        )
    parts.append(f'<text x="{_WIDTH // 2 - 14}" y="{_HEIGHT - 5}">ranks</text></svg>')
    return "\n".join(parts) + "\n"


def _y(value: float, top: float) -> float:
    return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * value / top


def main(folder: Path = Path("docs/results")) -> int:
    """Write both files."""
    found = costs()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agreement-cost.md").write_text(page(found, memory_bytes(SIZES[-1])))
    (folder / "agreement-cost.svg").write_text(picture(found))
    broken = [cost for cost in found if cost.broken]
    for cost in broken:
        print(cost)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
