"""The figures of a campaign."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from ftrt.report.campaign import PATHS, RULES, Group, median
from ftrt.report.look import Figure, Look, Picture, legend_in, panels
from ftrt.report.paper import Rate, paper_cell, paper_rate, short

_FAULTS = {
    "kill": "F1: the receiver is killed",
    "abort": "F2: the sender aborts",
    "pause": "F3: the receiver is paused",
    "link": "F4: link jitter",
}
_KINDS = (("duplicates", None), ("losses", "//////"))
_BAR = 0.2

Row = tuple[str, str]


def pictures(group: Group) -> list[Picture]:
    """Return all figures of a group that has anything to show."""
    made = [
        Picture(
            f"figure2-{group.slug}",
            f"Messages lost and duplicated per fault, beside the paper's: {group.title}",
            "Figure 2 of the paper redrawn: messages per fault that tripped a recovery, sizes "
            "pooled; ours in blue, the paper's in grey; solid duplicated, hatched lost. Whiskers "
            "are 95 % intervals, of a zero in n faults up to 3/n. “≥”: the paper gives the "
            "sum but not how many faults tripped, so it is over all 210 injected; “?”: "
            "its text has no number; “not run”: we have none.",
            partial(draw_figure2, group),
        )
    ]
    if any(_with_phases(group, fault) for fault in group.faults):
        made.append(
            Picture(
                f"phases-{group.slug}",
                f"Recovery time by phase: {group.title}",
                "Median of each phase from the injection to the first effect after it; the mark is "
                "the median of the whole, which medians of parts do not add up to. Each fault has "
                "a scale of its own.",
                partial(draw_phases, group),
            )
        )
    if any(group.recoveries_ms(*row, fault) for fault in group.faults for row in _rows(group)):
        made.append(
            Picture(
                f"recovery-{group.slug}",
                f"Distribution of recovery times: {group.title}",
                "Share of the recoveries that took at most so long, from the injection to the "
                "first effect after it.",
                partial(draw_distribution, group),
            )
        )
    return made


def _rows(group: Group, with_paper: bool = False) -> list[Row]:
    """Paths and rules that there is something to show of."""
    rows = []
    for rule in RULES:
        for path in PATHS:
            ours = any(group.of(path, rule, fault) for fault in group.faults)
            if ours or (with_paper and paper_cell(path, rule, "kill")):
                rows.append((path, rule))
    return rows


def _name(row: Row) -> str:
    return f"{row[0]}\n{row[1]}"


def draw_figure2(group: Group, look: Look) -> Figure:
    """The paper's Figure 2 with our numbers beside its own."""
    rows = _rows(group, with_paper=True)
    faults = [f for f in _FAULTS if f in group.faults or paper_cell("eager", "completion", f)]
    figure, axes = panels(look, len(faults), 0.62 * len(rows) + 0.7, sharey=not look.narrow)
    widest = max(_widest(group, rows, fault) for fault in faults)
    for axis, fault in zip(axes, faults, strict=True):
        for place, row in enumerate(rows):
            _bars(axis, group, look, place, row, fault)
        axis.set_title(_FAULTS[fault])
        axis.set_xlim(0, widest * (1.45 if look.narrow else 1.5))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_yticks(range(len(rows)), [_name(row) for row in rows])
        axis.tick_params(axis="y", length=0)
        for edge in range(1, len(rows)):
            axis.axhline(edge - 0.5, color=look.grid, linewidth=0.6)
    for axis in axes if not look.narrow else axes[-1:]:
        axis.set_xlabel("messages per tripped fault")
    handles = [
        Patch(facecolor=look.paper, label="paper, duplicated"),
        Patch(facecolor=look.ground, edgecolor=look.paper, hatch="//////", label="paper, lost"),
        Patch(facecolor=look.ours, label="ours, duplicated"),
        Patch(facecolor=look.ground, edgecolor=look.ours, hatch="//////", label="ours, lost"),
    ]
    _legend(figure, look, handles)
    return figure


def _widest(group: Group, rows: list[Row], fault: str) -> float:
    rates = [
        rate
        for row in rows
        for what, _ in _KINDS
        for rate in (paper_rate(*row, fault, what), group.rate(*row, fault, what))
        if rate is not None
    ]
    return max([max(rate.value, rate.high) for rate in rates], default=1.0) or 1.0


def _bars(axis: Any, group: Group, look: Look, place: int, row: Row, fault: str) -> None:
    y = place - 1.5 * _BAR
    for whose, colour in (("paper", look.paper), ("ours", look.ours)):
        for what, hatch in _KINDS:
            if whose == "paper":
                rate = paper_rate(*row, fault, what)
                missing = "?" if paper_cell(*row, fault) else ""
            else:
                rate = group.rate(*row, fault, what)
                missing = "not run" if not group.of(*row, fault) else "none tripped"
                missing = missing if what == "duplicates" else ""
            _bar(axis, y, rate, missing, colour, hatch, look)
            y += _BAR


def _bar(
    axis: Any, y: float, rate: Rate | None, missing: str, colour: str, hatch: Any, look: Look
) -> None:
    if rate is None:
        _label(axis, 0.0, y, missing, look.muted)
        return
    face = look.ground if hatch else colour
    axis.barh(y, rate.value, _BAR * 0.86, color=face, edgecolor=colour, hatch=hatch, linewidth=0.8)
    end = max(rate.value, rate.high)
    if rate.high:
        axis.plot([rate.low, rate.high], [y, y], color=look.text, linewidth=0.8)
    _label(axis, end, y, str(rate), look.text)


def _label(axis: Any, x: float, y: float, text: str, colour: str) -> None:
    axis.annotate(
        text, (x, y), (3, 0), textcoords="offset points", va="center", fontsize=7, color=colour
    )


def _with_phases(group: Group, fault: str) -> list[Row]:
    return [row for row in _rows(group) if group.phases_ms(*row, fault)]


def draw_phases(group: Group, look: Look) -> Figure:
    """Stacked bars: where the time of a recovery goes."""
    faults = [fault for fault in group.faults if _with_phases(group, fault)]
    names = list(
        dict.fromkeys(
            name
            for fault in faults
            for row in _with_phases(group, fault)
            for name in group.phases_ms(*row, fault)
        )
    )
    most = max(len(_with_phases(group, fault)) for fault in faults)
    top = legend_in(len(names) + 1, 3 if look.narrow else 8)
    figure, axes = panels(look, len(faults), 0.4 * most + 0.85, top)
    for axis, fault in zip(axes, faults, strict=True):
        rows = _with_phases(group, fault)
        for place, row in enumerate(rows):
            end = _stack(axis, look, place, group.phases_ms(*row, fault), names)
            if times := group.recoveries_ms(*row, fault):
                middle = median(times)
                axis.plot(middle, place, marker="|", markersize=13, color=look.text, mew=1.6)
                _label(axis, max(end, middle), place, short(middle), look.text)
        axis.set_title(_FAULTS.get(fault, fault))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_yticks(range(len(rows)), [_name(row) for row in rows])
        axis.set_xlim(left=0)
        axis.margins(x=0.12)
        axis.set_xlabel("ms")
    handles: list[Any] = [Patch(color=look.colour(i), label=name) for i, name in enumerate(names)]
    handles.append(
        Line2D([], [], marker="|", markersize=9, mew=1.6, ls="", color=look.text, label="median")
    )
    _legend(figure, look, handles, columns=3 if look.narrow else 8)
    return figure


def _stack(
    axis: Any, look: Look, place: int, phases_ms: dict[str, float], names: list[str]
) -> float:
    """One bar; where it ends."""
    left = 0.0
    for name, value in phases_ms.items():
        colour = look.colour(names.index(name))
        axis.barh(place, value, 0.66, left=left, color=colour, edgecolor=look.ground, linewidth=0.4)
        left += value
    return left


def draw_distribution(group: Group, look: Look) -> Figure:
    """Empirical distribution functions of the recovery time."""
    rows = _rows(group)
    faults = [f for f in group.faults if any(group.recoveries_ms(*row, f) for row in rows)]
    top = legend_in(len(rows), 2 if look.narrow else 6)
    figure, axes = panels(look, len(faults), 2.5, top, sharey=True)
    for axis, fault in zip(axes, faults, strict=True):
        for row in rows:
            times = group.recoveries_ms(*row, fault)
            if not times:
                continue
            share = [(i + 1) / len(times) for i in range(len(times))]
            axis.step([times[0], *times], [0.0, *share], where="post", **_line(look, row))
        _spread(axis, [t for row in rows for t in group.recoveries_ms(*row, fault)])
        axis.set_title(_FAULTS.get(fault, fault))
        axis.set_xlabel("recovery time (ms)")
        axis.set_ylim(0, 1.02)
        axis.grid(axis="both")
    for axis in axes if look.narrow else axes[:1]:
        axis.set_ylabel("share of recoveries")
    handles = [Line2D([], [], label=" ".join(row), **_line(look, row)) for row in rows]
    _legend(figure, look, handles, columns=2 if look.narrow else 6)
    return figure


def _spread(axis: Any, times: list[float]) -> None:
    """A logarithmic axis where times are of several magnitudes."""
    if max(times) < 5 * max(min(times), 1e-3):
        return
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _line(look: Look, row: Row) -> dict[str, Any]:
    solid = row[1] == "consumption"
    return {
        "color": look.colour(PATHS.index(row[0])),
        "linestyle": "-" if solid else (0, (4, 2)),
        "linewidth": 1.6,
    }


def _legend(figure: Figure, look: Look, handles: list[Any], columns: int | None = None) -> None:
    columns = columns or (2 if look.narrow else len(handles))
    figure.legend(
        handles=handles, loc="upper center", ncols=columns, fontsize=8, bbox_to_anchor=(0.5, 1.0)
    )
