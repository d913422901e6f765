"""How did an attempt end? Decided by what its ranks recorded, never by mpirun's status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIGNALLED = 128  # a shell's status of a program that a signal ended is this plus its number


@dataclass(frozen=True)
class Verdict:
    """The end of an attempt.

    Attributes
    ----------
    kind : {'running', 'done', 'error', 'failed'}
        ``error`` is an exception in the user's program; ``failed`` means that faults were too many.
    reason : str
        One sentence, empty for 'running' and 'done'.
    traceback : str
        Of the first error, or empty.
    """

    kind: str
    reason: str = ""
    traceback: str = ""


def read_ranks(attempt_dir: Path, ranks: int) -> dict[int, dict[str, Any]]:
    """Return what each rank recorded about its end; ranks that recorded nothing are left out."""
    found = {}
    for rank in range(ranks):
        try:
            record = json.loads((attempt_dir / f"rank-{rank}.json").read_text())
        except (OSError, ValueError):
            continue  # not there yet, or half written
        if isinstance(record, dict):
            found[rank] = record
    return found


def judge(records: dict[int, dict[str, Any]], ranks: int, ended: bool) -> Verdict:
    """Judge the records of ``ranks`` ranks; ``ended`` says that no process is left."""
    by_status: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        by_status.setdefault(str(record.get("status")), []).append(rank)
    if errors := by_status.get("error"):
        record = records[errors[0]]
        reason = f"rank {errors[0]} {_did(record.get('reason') or '')}"
        return Verdict("error", reason, record.get("traceback") or "")
    if failed := by_status.get("failed"):
        reason = records[failed[0]].get("reason") or "no reason was recorded"
        whose = f"rank {failed[0]}"
        return Verdict("failed", reason if reason.startswith(whose) else f"{whose}: {reason}")
    if len(by_status.get("done", [])) == ranks:
        return Verdict("done")
    if not ended:
        return Verdict("running")
    missing = [str(rank) for rank in range(ranks) if rank not in records]
    return Verdict("failed", f"the job ended without a result of rank {', '.join(missing)}")


def before_the_job(status: int | None) -> Verdict:
    """Judge an attempt in which nobody joined and nobody raised; ``status`` is of mpirun.

    A signal from outside is a failure that a restart may heal. Everything else is the program's.
    """
    if status is not None and (status < 0 or status > _SIGNALLED):
        number = -status if status < 0 else status - _SIGNALLED
        return Verdict("failed", f"signal {number} ended a process before the job began")
    return Verdict(
        "error",
        f"the program ended (status {status}) before all of its processes had called ftrt.init(): "
        "put the work inside `with ftrt.init() as rt:`",
    )


def _did(reason: str) -> str:
    name, _, rest = reason.partition(": ")
    if name == "SystemExit":
        return f"called sys.exit({rest}) before its work was done"
    return f"raised {(reason if rest else name) or 'an exception'}"  # it may say no more
