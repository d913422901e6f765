"""The figures of a job."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ftrt.report.job import Job, Span, stream_name
from ftrt.report.look import Figure, Look, Picture, legend_in, panels

#: More recoveries, attempts or streams than that are in the tables only.
MOST_RECOVERIES, MOST_ATTEMPTS, MOST_STREAMS = 40, 6, 12
#: Processes that the legend of the timeline names.
MOST_PROCESSES = 12

_SECONDS = "seconds since the first epoch"

_MARKS = (("fault", "X", "fault"), ("died", "v", "death seen"), ("suspected", "d", "suspected"))


def pictures(job: Job) -> list[Picture]:
    """All figures that the job's records have something for."""
    made = []
    if job.records:
        made.append(
            Picture(
                "timeline",
                "Who held which rank",
                "A bar is one process in one rank, one colour a process; a thin line is the "
                "beginning of an epoch. Time since the attempt began.",
                partial(draw_timeline, job),
            )
        )
    if recoveries(job):
        made.append(
            Picture(
                "recoveries",
                "Recoveries by phase",
                "Each recovery of the job, in the order in which they came.",
                partial(draw_recoveries, job),
            )
        )
    if any(len(points) > 1 for points in stream_points(job).values()):
        made.append(
            Picture(
                "streams",
                "Messages consumed",
                "What each stream's receiver had consumed when an epoch began, and at the end, "
                "from the epochs' records and the ledger.",
                partial(draw_streams, job),
            )
        )
    if len(job.samples) > 2:
        made.append(
            Picture(
                "messages",
                "Messages of each rank",
                "Messages that a rank sent or consumed in the attempt, as the launcher saw it from "
                "time to time.",
                partial(draw_messages, job),
            )
        )
    return made


def recoveries(job: Job) -> list[dict[str, Any]]:
    """Events of recoveries that have phases."""
    return [event for event in job.of("recovery") if event.get("phases_ms")]


def _shown_attempts(job: Job) -> list[int]:
    with_epochs = {int(found.get("attempt", 1)) for found in job.records}
    return sorted(with_epochs)[-MOST_ATTEMPTS:]


def draw_timeline(job: Job, look: Look) -> Figure:
    """One panel an attempt, one row a rank."""
    attempts, spans = _shown_attempts(job), job.spans()
    ranks = int(job.about.get("ranks", 1))
    colours = {p: i for i, p in enumerate(sorted({s.process for s in spans}))}
    columns = 3 if look.narrow else 8
    named = min(len(colours), MOST_PROCESSES) + len(_MARKS)
    height_in = 0.3 * min(ranks, 24) + 0.75
    figure, axes = _stacked(look, len(attempts), height_in, named, columns)
    for axis, attempt in zip(axes, attempts, strict=True):
        mine = [span for span in spans if span.attempt == attempt]
        for span in mine:
            _span(axis, look, span, colours[span.process], mine)
        _epochs(axis, look, mine)
        for name, marker, _ in _MARKS:
            for event in job.of(name, attempt):
                if event.get("rank") is not None:
                    axis.plot(event["t"], event["rank"], marker, **_mark(look, marker))
        if len(attempts) > 1:
            axis.set_title(f"attempt {attempt}", pad=14)
        axis.set_ylim(ranks - 0.5, -0.5)
        if ranks <= 24:
            axis.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        begin = min((span.begin_s for span in mine), default=0.0)
        rest = max(job.ends_s[attempt] - begin, 1e-3) * 0.02
        axis.set_xlim(begin - rest, job.ends_s[attempt] + rest)
    axes[-1].set_xlabel("seconds since the attempt began")
    marks: list[Any] = [
        Line2D([], [], linestyle="", marker=marker, label=label, **_mark(look, marker))
        for name, marker, label in _MARKS
        if any(event.get("rank") is not None for event in job.of(name))
    ]
    processes = [Patch(color=look.colour(i), label=f"process {p}") for p, i in colours.items()]
    handles = [*marks, *processes[:MOST_PROCESSES]]
    figure.legend(handles=handles, loc="upper center", ncols=columns, fontsize=8)
    return figure


def _stacked(
    look: Look, count: int, height_in: float, named: int, columns: int
) -> tuple[Figure, list[Any]]:
    """Panels below each other, whatever the width, below a legend of ``named`` names."""
    tall = Look(dark=look.dark, narrow=True)
    figure, axes = panels(tall, count, height_in, legend_in(named, columns))
    figure.set_figwidth(look.width_in)
    return figure, axes


def _span(axis: Any, look: Look, span: Span, colour: int, spans: list[Span]) -> None:
    width = max(span.end_s - span.begin_s, 0.0)
    axis.barh(span.rank, width, 0.62, left=span.begin_s, color=look.colour(colour))


def _epochs(axis: Any, look: Look, spans: list[Span]) -> None:
    """A line at each beginning; names only where they do not overlap."""
    begins = sorted({(span.begin_s, span.epoch) for span in spans})
    whole = max((span.end_s for span in spans), default=1.0) - (begins[0][0] if begins else 0.0)
    room = whole * (0.16 if look.narrow else 0.07)
    free = -1.0
    for begin, epoch in begins:
        axis.axvline(begin, color=look.text, linewidth=0.7)
        if begin >= free:
            axis.annotate(
                f"epoch {epoch}",
                (begin, 1.0),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=7,
            )
            free = begin + room


def _mark(look: Look, marker: str) -> dict[str, Any]:
    return {
        "color": look.bad if marker != "d" else look.muted,
        "markeredgecolor": look.ground,
        "markeredgewidth": 0.8,
        "markersize": 9 if marker == "X" else 7,
        "zorder": 5,
    }


def draw_recoveries(job: Job, look: Look) -> Figure:
    """Stacked bars, one a recovery."""
    shown = recoveries(job)[-MOST_RECOVERIES:]
    names = list(dict.fromkeys(name for event in shown for name in event["phases_ms"]))
    columns = 3 if look.narrow else 8
    figure, (axis,) = _stacked(look, 1, 0.27 * len(shown) + 0.6, len(names), columns)
    for place, event in enumerate(shown):
        left = 0.0
        for name, value in event["phases_ms"].items():
            axis.barh(
                place,
                value,
                0.68,
                left=left,
                color=look.colour(names.index(name)),
                edgecolor=look.ground,
                linewidth=0.4,
            )
            left += value
        axis.annotate(
            f"{left:.1f}", (left, place), (3, 0), textcoords="offset points", va="center",
            fontsize=7,
        )  # fmt: skip
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.set_yticks(range(len(shown)), [_told(event, look) for event in shown])
    axis.set_xlim(left=0)
    axis.margins(x=0.08)
    axis.set_xlabel("ms")
    handles = [Patch(color=look.colour(i), label=name) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="upper center", ncols=columns, fontsize=8)
    return figure


def _told(event: dict[str, Any], look: Look) -> str:
    who = f"rank {event['rank']}" if event.get("rank") is not None else "all ranks"
    return f"epoch {event.get('epoch')}, {who}"


def stream_points(job: Job) -> dict[str, list[tuple[int, float, int]]]:
    """Per stream ``(attempt, seconds, consumed)`` at each change of epoch and at the end."""
    begins = job.begins_s()
    attempts = {int(r["epoch"]): int(r.get("attempt", 1)) for r in job.records}
    found: dict[str, list[tuple[int, float, int]]] = {}
    first = min(begins, default=1)
    for name, marks in job.progress().items():
        found[name] = [(attempts[first], begins[first], 0)] if marks[0][0] > first else []
        found[name] += [(attempts[epoch], begins[epoch], count) for epoch, count in marks]
    last = max(job.attempts, default=1)
    for row in job.audit.get("streams", ()):
        for name, points in found.items():
            if _is_of(row, name):
                points.append((last, job.ends_s[last], int(row["consumed"])))
    return found


def draw_messages(job: Job, look: Look) -> Figure:
    """One line a rank, one panel an attempt."""
    attempts = sorted({int(sample["attempt"]) for sample in job.samples})[-MOST_ATTEMPTS:]
    ranks = min(int(job.about.get("ranks", 1)), MOST_STREAMS)
    columns = 3 if look.narrow else 8
    figure, axes = _stacked(look, len(attempts), 2.2, ranks, columns)
    for axis, attempt in zip(axes, attempts, strict=True):
        mine = [sample for sample in job.samples if sample["attempt"] == attempt]
        times = [sample["t"] for sample in mine]
        for rank in range(ranks):
            counts = [sample["messages"][rank] for sample in mine]
            axis.plot(times, counts, color=look.colour(rank), label=f"rank {rank}")
        for event in job.of("died", attempt):
            axis.axvline(event["t"], color=look.bad, linewidth=0.8, linestyle=(0, (4, 2)))
        if len(attempts) > 1:
            axis.set_title(f"attempt {attempt}")
        axis.set_ylim(bottom=0)
        axis.set_ylabel("messages")
        axis.grid(axis="both")
    axes[-1].set_xlabel("seconds since the attempt began")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=columns, fontsize=8)
    return figure


def _is_of(row: dict[str, Any], name: str) -> bool:
    """Whether a row of the audit, which names one of several receivers only, is this stream."""
    whole = stream_name(row)
    return name == whole or ("dest" not in row and name.startswith(f"{whole} → "))


def draw_streams(job: Job, look: Look) -> Figure:
    """Lines over the time of the whole job, attempts one after the other."""
    shown = dict(list(stream_points(job).items())[:MOST_STREAMS])
    begins, offsets, total = job.begins_s(), dict[int, float](), 0.0
    for attempt in _shown_attempts(job):
        mine = (begins[int(r["epoch"])] for r in job.records if int(r["attempt"]) == attempt)
        begin = min(mine, default=0.0)
        offsets[attempt] = total - begin
        total += job.ends_s[attempt] - begin
    columns = 2 if look.narrow else 6
    figure, (axis,) = _stacked(look, 1, 2.6, len(shown), columns)
    for index, (name, points) in enumerate(shown.items()):
        points = [point for point in points if point[0] in offsets]
        times = [offsets[attempt] + t for attempt, t, _ in points]
        counts = [count for _, _, count in points]
        axis.plot(times, counts, marker="o", markersize=3, color=look.colour(index), label=name)
    for attempt in list(offsets)[1:]:
        first = min(begins[int(r["epoch"])] for r in job.records if int(r["attempt"]) == attempt)
        axis.axvline(
            offsets[attempt] + first, color=look.muted, linewidth=0.8, linestyle=(0, (4, 2))
        )
    axis.set_xlim(-0.01 * total, total * 1.02)
    axis.set_ylim(bottom=0)
    axis.grid(axis="both")
    axis.set_xlabel(_SECONDS if len(offsets) < 2 else f"{_SECONDS}, attempts in a row")
    axis.set_ylabel("messages consumed")
    figure.legend(loc="upper center", ncols=columns, fontsize=8)
    return figure
