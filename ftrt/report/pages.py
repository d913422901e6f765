"""What is on the page of a campaign, and on that of a job."""

from __future__ import annotations

from typing import Any

from ftrt import __version__
from ftrt.report.campaign import FAULTS, PATHS, RULES, Campaign, Group, disagrees
from ftrt.report.job import Job
from ftrt.report.page import Page, Text
from ftrt.report.paper import paper, paper_cell, paper_rate, short

_COLUMNS = (
    *("cell", "trials", "tripped", "ambiguous", "sent", "losses", "≤ a fault", "duplicates"),
    *("≤ a fault", "stale", "empty", "torn", "oracle", "controls", "median ms", "p99", "max"),
    "wire MB",
)


def campaign_page(campaign: Campaign) -> Page:
    """The page of a campaign without its figures."""
    page = Page("Fault campaign")
    for complaint in campaign.complaints:
        page.verdict(complaint, good=False)
    for rule in ("consumption", "completion"):
        tripped = campaign.total("tripped", rule)
        lost, twice = campaign.total("losses", rule), campaign.total("duplicates", rule)
        if not tripped:
            continue
        bound = f" (each below {short(3 / tripped)} a fault, 95 %)" if not lost + twice else ""
        page.verdict(
            f"Under {rule}: {tripped:,} faults tripped a recovery, {lost:,} messages lost, "
            f"{twice:,} duplicated{bound}",
            good=rule == "completion" or not lost + twice,
        )
    if campaign.disagreements:
        page.verdict(f"Ledger and oracle disagree in {campaign.disagreements} cells", good=False)
    if any(cell.get("oracle") for cell in campaign.cells) and not campaign.disagreements:
        page.note("The oracle, which is not the ledger, counted the same in every cell.")
    facts = [(k, _said(v)) for k, v in campaign.about.items()]
    page.facts([*facts, ("drawn by", f"ftrt {__version__}")])
    return page


def campaign_tables(page: Page, campaign: Campaign) -> None:
    """Add the tables of a campaign."""
    page.heading("Beside the paper")
    for group in campaign.groups:
        rows = _compared(group)
        if rows:
            page.note(f"{_first_up(group.title)}, all sizes:")
            columns = ("cell", "paper: tripped", "lost", "duplicated")
            page.table((*columns, "ours: tripped", "lost", "duplicated", "median ms"), rows)
    source = paper()
    page.note(
        f"Messages per tripped fault. The paper: {source['source']} ({source['setting']}); "
        f"{source['injected']} faults injected under consumption, {source['tripped']} of them "
        "tripped. “–” is what its text does not state, or what we have not run."
    )
    page.heading("Cells")
    for group in campaign.groups:
        page.note(f"{_first_up(group.title)}:")
        page.table(_COLUMNS, [_row(cell) for cell in group.cells], _bad(group.cells))
    page.note(
        "Ambiguous: completion and consumption really disagreed at the fault. ≤ a fault: 95 % "
        "upper bound of the rate behind a zero, 3/n. Oracle: losses/duplicates counted where "
        "no recovery looks. Controls: runs without a fault, and what they counted, which has to "
        "be zero."
    )
    page.heading("Cells not run")
    if campaign.not_run:
        rows = [
            (_cell_name(entry["cell"]), Text(entry["reason"], wraps=True))
            for entry in campaign.not_run
        ]
        page.table(("cell", "reason"), rows)
    else:
        page.note("None: every cell that was asked for was run.")


def _first_up(text: str) -> str:
    return text[0].upper() + text[1:]


def _bad(cells: list[dict[str, Any]]) -> list[int]:
    """Cells that break a promise."""
    lost = [cell["rule"] == "consumption" and cell["losses"] + cell["duplicates"] for cell in cells]
    return [i for i, cell in enumerate(cells) if lost[i] or disagrees(cell)]


def _compared(group: Group) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for fault in FAULTS:
        for rule in RULES:
            for path in PATHS:
                cells, theirs = group.of(path, rule, fault), paper_cell(path, rule, fault)
                if not cells and not theirs:
                    continue
                times = group.recoveries_ms(path, rule, fault)
                rows.append(
                    (
                        f"{fault} {path} {rule}",
                        theirs.get("tripped"),
                        *(_told(paper_rate(path, rule, fault, what)) for what in _LOST_TWICE),
                        sum(cell["tripped"] for cell in cells) if cells else None,
                        *(_told(group.rate(path, rule, fault, what)) for what in _LOST_TWICE),
                        times[len(times) // 2] if times else None,
                    )
                )
    return rows


_LOST_TWICE = ("losses", "duplicates")


def _told(rate: Any) -> Any:
    return None if rate is None else str(rate)


def _cell_name(cell: dict[str, Any]) -> str:
    names = ("plane", "transport", "path", "fault", "rule")
    size = f"{cell['size']} B" if "size" in cell else ""
    return " ".join([*(str(cell[n]) for n in names if cell.get(n)), size]).strip()


def _row(cell: dict[str, Any]) -> tuple[Any, ...]:
    took, oracle = cell.get("recovery_ms") or {}, cell.get("oracle")
    wire = cell.get("wire_bytes")
    return (
        _cell_name({**cell, "plane": "", "transport": ""}),
        cell["trials"],
        cell["tripped"],
        _share(cell),
        cell.get("sent"),
        cell["losses"],
        _bound(cell.get("bound_loss")),
        cell["duplicates"],
        _bound(cell.get("bound_duplicate")),
        *(cell.get(name) for name in ("stale", "empty", "torn")),
        f"{oracle.get('losses', 0)}/{oracle.get('duplicates', 0)}" if oracle else None,
        _controls(cell.get("controls")),
        *(took.get(name) for name in ("median", "p99", "max")),
        None if wire is None else round(wire / 1e6, 1),
    )


def _share(cell: dict[str, Any]) -> str | None:
    count = cell.get("ambiguous")
    if count is None or not cell["tripped"]:
        return None
    return f"{int(count):,} ({count / cell['tripped']:.0%})"


def _bound(value: Any) -> str | None:
    return None if value is None else short(float(value))


def _controls(found: Any) -> Any:
    """``40: 0``: forty runs without a fault that counted nothing."""
    if not isinstance(found, dict):
        return found
    counted = sum(found.get(n) or 0 for n in (*_LOST_TWICE, "stale", "empty", "torn", "trips"))
    return f"{found.get('trials', 0)}: {counted}"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    return str(value)


# -- a job ---------------------------------------------------------------------------------


def job_page(job: Job) -> Page:
    """The page of a job without its figures."""
    from ftrt.launch.summary import audit_line

    page = Page(f"Job {str(job.about.get('job', ''))[:8]}")
    page.verdict(audit_line(job.audit), good=bool(job.audit.get("ok")))
    if reason := _why_not(job):
        page.verdict(reason, good=False)
    counts = [
        (len(job.of("fault")), "faults injected"),
        (len(job.of("died")), "deaths seen"),
        (len(job.of("recovery")), "recoveries"),
        (len(job.records), "epochs"),
        (len(job.attempts), "attempts"),
    ]
    page.note(", ".join(f"{what}: {count}" for count, what in counts))
    about = job.about
    command = " ".join([str(about.get("program", "")), *map(str, about.get("args") or ())])
    facts = [("program", command)]
    facts += [(name, str(about.get(name))) for name in ("ranks", "spares", "stable", "seed")]
    page.facts(facts)
    return page


def _why_not(job: Job) -> str:
    """Why the last attempt ended without a result, empty if it has one or still runs."""
    last = max(job.attempts, default=1)
    for event in job.of("failed", last):
        return f"attempt {last} failed: {event.get('reason')}"
    for rank, found in sorted(job.ranks.items()):
        if found.get("status") in ("error", "failed"):
            return f"rank {rank}: {found.get('reason')}"
    return ""


def job_tables(page: Page, job: Job) -> None:
    """Add the tables of a job."""
    page.heading("Audit")
    names = ("sent", "consumed", "dropped", "duplicates", "losses", "closed")
    rows, bad = [], []
    for index, row in enumerate(job.audit.get("streams", ())):
        to = f" → {row['dest']}" if "dest" in row else ""
        rows.append((f"{row['stream']}, from {row['source']}{to}", *(row.get(n) for n in names)))
        if row.get("losses") or row.get("duplicates") or row.get("unsent") or not row["closed"]:
            bad.append(index)
    if rows:
        page.table(("stream", *names), rows, bad)
    else:
        page.note(str(job.audit.get("error") or "No stream was opened."))
    if job.ranks:
        page.heading("Ranks")
        ends = [
            (f"rank {rank}", Text(str(end.get("status"))), Text(str(end.get("reason") or ""), True))
            for rank, end in sorted(job.ranks.items())
        ]
        marked = [i for i, row in enumerate(ends) if row[1].text not in ("done",)]
        page.table(("rank", "ended", "reason"), ends, marked)
    page.heading("What happened")
    events = [_event(event, job) for event in job.events if event.get("event") != "promoted"]
    if events:
        page.table(("seconds", "what", "epoch", "rank", "details"), events)
    else:
        page.note("Nothing: no fault, no recovery.")


def _event(event: dict[str, Any], job: Job) -> tuple[Any, ...]:
    attempt = f" ({event['attempt']})" if len(job.attempts) > 1 else ""
    phases = event.get("phases_ms") or {}
    said = [f"{sum(phases.values()):.1f} ms:"] if phases else []
    said += [f"{name} {ms:.1f}" for name, ms in phases.items()]
    for name in ("spec", "text", "reason"):
        if event.get(name):
            said.append(str(event[name]))
    if event.get("by"):
        said.append(f"seen by {event['by']}")
    if event.get("process") is not None:
        said.append(f"process {event['process']}")
    return (
        f"{event['t']:.3f}{attempt}",
        Text(str(event.get("event"))),
        event.get("epoch"),
        event.get("rank"),
        Text(", ".join(said).replace(":,", ":"), wraps=True),
    )
