"""What each trial came to, by the ledger and by the oracle, and what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ftrt.campaign import trace
from ftrt.campaign.plan import Batch, Trial
from ftrt.host.timing import DECISION
from ftrt.launch.outside import Outcome
from ftrt.ledger.audit import consumptions

#: The counters of a trial; all are zero in one without a fault.
COUNTERS = ("duplicates", "losses", "stale", "empty", "torn")
_STREAM, _SOURCE, _RECEIVER = "campaign", 0, 1


@dataclass
class Judged:
    """A batch that ended.

    Attributes
    ----------
    lines : list of dict
        One for each trial that ran to its end, as in ``trials.jsonl``, without its cell.
    complaints : list of str
        Why the campaign cannot go on as if nothing had happened.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class Judge:
    """Reads what a batch left in its folder.

    Parameters
    ----------
    batch : Batch
    directory : path
    struck : dict of int to int
        Injections, by position (see :class:`ftrt.campaign.conductor.Conductor`).
    killed : int
        Processes that were killed as planned.
    outcome : Outcome
    """

    def __init__(
        self,
        batch: Batch,
        directory: Path,
        struck: dict[int, int],
        killed: int,
        outcome: Outcome,
    ) -> None:
        self._batch, self._directory, self._struck = batch, directory, struck
        self._killed, self._outcome = killed, outcome
        self._sender = _notes(directory, "sender")
        self._receiver = _notes(directory, "receiver")
        accounts = trace.read(directory / "trace", _RECEIVER)
        self._account = accounts.get(_SOURCE, trace.Account())
        self._ledger = self._ledger_counts()
        self._start_s = self._attempt_start()

    def judge(self) -> Judged:
        """Go through all trials."""
        judged = Judged(complaints=[*self._how_it_ended(), *self._deaths()])
        told = {note["position"]: note for note in self._sender}
        for position, trial in enumerate(self._batch.trials, 1):
            if position not in told:
                if not judged.complaints:
                    judged.complaints.append(f"trial {trial.number} left no record")
                break
            line = self._line(position, trial, told[position])
            if trial.counts:
                judged.lines.append(line)
            judged.complaints += self._about(position, line)
        judged.complaints += self._whole_result()
        return judged

    # -- one trial ------------------------------------------------------------------------------

    def _line(self, position: int, trial: Trial, told: dict[str, Any]) -> dict[str, Any]:
        first, last = self._batch.numbers(position)
        trips, struck = told["trips"], self._struck.get(position)
        tripped = bool(trips) and (struck is not None or trial.control)
        stale = self._stale(first, last, trips)
        left = [n["left"] for n in self._receiver if n.get("position") == position and "left" in n]
        begin = told["start_ns"]
        return {
            "trial": trial.number,
            "control": trial.control,
            "seed": trial.seed,
            "tripped": tripped and not trial.control,
            "ambiguous": tripped and not trial.control and stale > 0,
            "trips": len(trips),
            "sent": last - first + 1,
            **self._counts(first, last),
            "stale": stale,
            "empty": sum(counts["empty"] for counts in left),
            "torn": sum(counts["torn"] for counts in left),
            **self._times(trips if tripped else [], struck, told),
            "injected_at_s": None if struck is None else round((struck - begin) / 1e9, 6),
            "length_ms": round((told["end_ns"] - begin) / 1e6, 3),
            "wire_bytes": told["wire_bytes"],
        }

    def _counts(self, first: int, last: int) -> dict[str, int]:
        ledger = self._ledger[first : last + 1]
        oracle = np.array([self._account.commits[seq] for seq in range(first, last + 1)])
        unfinished = np.array([self._account.unfinished[seq] for seq in range(first, last + 1)])
        return {
            "duplicates": int(np.maximum(ledger - 1, 0).sum()),
            "losses": int((ledger == 0).sum()),
            "oracle_duplicates": int(np.maximum(oracle - 1, 0).sum()),
            "oracle_losses": int(((oracle == 0) & (unfinished == 0)).sum()),
            "oracle_open": int(unfinished.sum()),
        }

    def _stale(self, first: int, last: int, trips: list[dict]) -> int:
        """Messages on which completion and consumption disagree at the fault, or at the end.

        The receiver may have committed one more than its trace says at that instant; one that died
        there has, if the ledger says so.
        """
        times = self._account.times_ns
        mine = times[(times[:, 0] >= first) & (times[:, 0] <= last)]
        if not trips:  # all was given back, so all is complete
            return len(set(range(first, last + 1)).difference(mine[:, 0].tolist()))
        at, upto, open_ = trips[0]["t_ns"], trips[0]["upto"], trips[0]["open"]
        complete = set(range(first, min(upto, last) + 1)).difference(open_)
        done = set(mine[mine[:, 1] <= at, 0].tolist())
        for seq in self._account.unfinished:
            if first <= seq <= last and self._ledger[seq] > self._account.commits[seq]:
                done.add(seq)
        return len(complete.symmetric_difference(done))

    # -- how long it took -------------------------------------------------------------------------

    def _times(self, trips: list[dict], struck: int | None, told: dict) -> dict[str, Any]:
        if not trips or struck is None:
            return {"recovery_ms": None, "phases_ms": {}}
        trip = trips[0]
        died = self._death_after(struck) if trip["cause"] == "death" else None
        if died is not None:
            phases = {**died[1], "detect": died[0] - struck / 1e6}
            rebuilt_ns = struck + int(sum(phases.values()) * 1e6)
        else:
            phases = {"detect": (trip["t_ns"] - struck) / 1e6, **trip["phases_ms"]}
            rebuilt_ns = trip["end_ns"]
        times = self._account.times_ns[:, 1]
        after = times[(times > rebuilt_ns) & (times <= told["end_ns"])]
        total = None
        if after.size:
            phases["resume"] = (int(after[0]) - rebuilt_ns) / 1e6
            total = round((int(after[0]) - struck) / 1e6, 3)
        rounded = {name: round(value, 3) for name, value in phases.items()}
        return {"recovery_ms": total, "phases_ms": rounded}

    def _death_after(self, struck_ns: int) -> tuple[float, dict[str, float]] | None:
        """When the first death after a time was noticed (ms), and the phases of its recovery."""
        events = self._outcome.events
        for index, event in enumerate(events):
            seen_ms = (self._start_s + event["t"]) * 1e3
            if event["event"] == "died" and seen_ms * 1e6 >= struck_ns:
                for later in events[index:]:
                    if later["event"] == "recovery":
                        told = later["phases_ms"]
                        return seen_ms, {name: told[name] for name in DECISION if name in told}
        return None

    def _attempt_start(self) -> float:
        path = self._directory / "ledger" / "run" / "attempt-1.start"
        return float(path.read_text()) if path.exists() else 0.0

    # -- what is wrong --------------------------------------------------------------------------

    def _about(self, position: int, line: dict[str, Any]) -> list[str]:
        """Complaints of one trial."""
        what = "control" if line["control"] else "trial"
        name = f"{what} {line['trial']} of {self._batch.cell.name}"
        first, last = self._batch.numbers(position)
        numbers = range(first, last + 1)
        wrong = [s for s in numbers if not self._account.allows(s, int(self._ledger[s]))]
        found = []
        if wrong:
            found.append(
                f"{name}: ledger and oracle disagree on {len(wrong)} messages, the first is number "
                f"{wrong[0]}: {self._ledger[wrong[0]]} events in the ledger, "
                f"{self._account.commits[wrong[0]]} effects in the trace"
            )
        if line["control"] and self._batch.trials[position - 1].counts:
            bad = {key: line[key] for key in (*COUNTERS, "trips") if line[key]}
            if bad:
                found.append(f"{name}: nothing was injected, and yet {bad}")
        elif self._batch.cell.rule == "consumption" and (line["losses"] or line["duplicates"]):
            found.append(f"{name}: {line['losses']} lost, {line['duplicates']} duplicated")
        return found

    def _how_it_ended(self) -> list[str]:
        outcome = self._outcome
        if outcome.status is None:
            return [f"the job hung and was ended: {_tail(outcome.output)}"]
        if outcome.status == 0 or outcome.report.get("audit"):  # an unclean audit is counted
            return []
        reason = outcome.report.get("reason") or _tail(outcome.output)
        return [f"the job ended with status {outcome.status}: {reason}"]

    def _deaths(self) -> list[str]:
        died = [e for e in self._outcome.events if e["event"] == "died"]
        if len(died) == self._killed:
            return []
        told = ", ".join(
            f"process {e['process']} (rank {e.get('rank')}, by {e['by']}) at {e['t']:.3f} s"
            for e in died
        )
        return [
            f"{self._killed} processes were killed as planned and {len(died)} died ({told}): a "
            "process died outside of the plan, and no count of this batch is worth anything"
        ]

    def _whole_result(self) -> list[str]:
        """The effects themselves: what the receiver's state has added up, and every payload."""
        found = [f"message {n['wrong']} arrived wrong" for n in self._receiver if "wrong" in n]
        sums = [note["done"] for note in self._receiver if "done" in note]
        if self._batch.cell.rule != "consumption" or not sums:
            return found
        count = self._batch.numbers(len(self._batch.trials))[1]
        right = [count, count * (count + 1) // 2]
        if sums != [right]:
            found.append(f"the receiver's state says {sums}, not {right} (messages, their sum)")
        return found

    def _ledger_counts(self) -> np.ndarray:
        """How often each number has a consumption event."""
        counts = np.zeros(self._batch.numbers(len(self._batch.trials))[1] + 1, np.int64)
        ledger = self._directory / "ledger"
        if not (ledger / "job.json").exists():
            return counts
        table = consumptions(ledger).get((_STREAM, _SOURCE, _RECEIVER), np.empty((0, 2), np.int64))
        for first, length in table.tolist():
            counts[first : first + length] += 1
        return counts


def _notes(directory: Path, name: str) -> list[dict[str, Any]]:
    """Whole lines of all processes that were in a role."""
    found = []
    for path in sorted(directory.glob(f"{name}-*.jsonl")):
        found += [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return found


def _tail(output: str) -> str:
    return output.strip().rpartition("\n")[2]


def sums_of(lines: list[dict[str, Any]]) -> Counter:
    """The counters of some trials, added up."""
    total: Counter = Counter()
    for line in lines:
        total.update({key: line[key] for key in COUNTERS})
    return total
