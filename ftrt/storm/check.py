"""What a job that ended must look like: by its result, its oracle, and what it left behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ftrt.launch import leftovers
from ftrt.oracle import check_effects
from ftrt.storm.plan import Plan

#: Faults after which a process is gone.
ENDING = ("kill", "segv", "exit", "eio")
#: Faults after which a process may be silent for longer than is borne.
SILENCING = ("stop", "freeze", "throttle", "suspend")


@dataclass
class Ended:
    """A job of the storm that ended, or was ended.

    Attributes
    ----------
    status : int or None
        Exit status of ``ftrt run``; None if it had to be ended.
    report, events : dict, list of dict
        What it wrote.
    strikes : list of dict
        What was done to it from outside.
    """

    plan: Plan
    directory: Path
    status: int | None
    output: str
    report: dict = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    strikes: list[dict] = field(default_factory=list)

    def faults(self) -> Counter:
        """How often each kind of fault struck; those from outside are told apart."""
        inside = Counter(event["kind"] for event in self.events if event["event"] == "fault")
        return inside + Counter(f"outside {strike['kind']}" for strike in self.strikes)


def complaints(ended: Ended, digest: str, expected: dict) -> dict[str, list[str]]:
    """What is wrong with a job, by ``lost``, ``duplicated``, ``hangs``, ``crashes``, ``left``.

    Parameters
    ----------
    ended : Ended
    digest : str
        Of the right result.
    expected : dict
        Effects of a complete run, as :func:`ftrt.oracle.check_effects` wants them.
    """
    found: dict[str, list[str]] = {name: [] for name in KINDS}
    if ended.status is None:
        found["hangs"].append("it did not end in time")
    elif ended.status != 0:
        reason = ended.report.get("reason") or ended.output.strip().rpartition("\n")[2]
        found["failed"].append(f"exit {ended.status}: {reason}")
    else:
        _judge_result(ended, digest, expected, found)
    found["crashes"] += _unexplained(ended)
    found["left"] += _left(ended)
    return {name: texts for name, texts in found.items() if texts}


#: Kinds of complaints; none of them may occur.
KINDS = ("lost", "duplicated", "wrong", "failed", "hangs", "crashes", "left")


def _judge_result(ended: Ended, digest: str, expected: dict, found: dict[str, list[str]]) -> None:
    audit = ended.report.get("audit") or {}
    if not audit.get("ok"):
        found["wrong"].append(f"the audit is not clean: {audit}")
    if ended.report.get("digest") != digest:
        found["wrong"].append(f"digest {ended.report.get('digest')}, not {digest}")
    oracle = check_effects(ended.directory / "effects", expected)
    found["lost"] += [str(key) for key in oracle["losses"]]
    # A failed sync takes back what was not durable: those effects are void and happen again.
    if not any(event["event"] == "fault" and event["kind"] == "eio" for event in ended.events):
        found["duplicated"] += [str(key) for key in oracle["duplicates"]]


def _unexplained(ended: Ended) -> list[str]:
    """Deaths that nobody caused: a crash inside MPI or ftrt, or an eviction without a reason."""
    found = []
    for event in ended.events:
        if event["event"] == "died" and not _explained(ended, event):
            found.append(f"process {event['process']} (rank {event.get('rank')}): {event['by']}")
    return found


def _explained(ended: Ended, death: dict) -> bool:
    faults = [e for e in ended.events if e["event"] == "fault" and e["attempt"] == death["attempt"]]
    mine = {f["kind"] for f in faults if f["rank"] == death.get("rank")}
    strikes = [s for s in ended.strikes if s["attempt"] == death["attempt"]]
    outside = {s["kind"] for s in strikes if s["process"] in (None, death["process"])}
    if "no progress" in death["by"]:
        return "hang" in mine
    if "no heartbeat" in death["by"]:
        return bool((mine | outside).intersection(SILENCING))
    return bool(mine.intersection(ENDING) or outside - {"suspend"})


def _left(ended: Ended) -> list[str]:
    job = ended.report.get("job")
    if not job:
        return []
    found = [f"process {pid}" for pid in sorted(leftovers.of_job(job))]
    return found + [str(path) for path in sorted(leftovers.SHM.glob(f"ftrt-{job[:8]}*"))]
