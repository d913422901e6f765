"""How the work of a rank ends: recorded for the launcher or, without one, told by the rank."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ftrt import mpi
from ftrt.errors import Fenced, FtrtError
from ftrt.ledger.reserve import with_room
from ftrt.runtime.config import Config


def _path(config: Config, rank: int) -> Path:
    return config.run_directory / f"rank-{rank}.json"


def has_reported(config: Config, rank: int) -> bool:
    """Whether it is recorded how ``rank`` ended."""
    return _path(config, rank).exists()


def report(config: Config, rank: int, status: str, reason: str = "", trace: str = "") -> None:
    """Record how ``rank`` ended; the launcher judges the attempt by these records."""
    path = _path(config, rank)
    record = {"rank": rank, "status": status, "reason": reason, "traceback": trace}
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with_room(config.ledger / "run", lambda: temporary.write_text(json.dumps(record)))
    os.replace(temporary, path)


def raised(config: Config, rank: int, error: BaseException) -> NoReturn:
    """Leave because the user's code raised ``error`` while the job ran."""
    leaves = isinstance(error, SystemExit)  # a decision, not an accident: nothing to trace
    trace = "" if leaves else "".join(traceback.format_exception(error))
    report(config, rank, "error", f"{type(error).__name__}: {error}", trace)
    if not config.launched:
        print(trace or f"ftrt: rank {rank} left with {error}", file=sys.stderr, flush=True)
    mpi.leave(1)


def give_up(config: Config, rank: int | None, failure: FtrtError) -> NoReturn:
    """Leave because this attempt, or this process, cannot go on."""
    fenced = isinstance(failure, Fenced)
    if rank is not None and not fenced:
        report(config, rank, "failed", str(failure))
    if fenced or not config.launched:  # what failed is told by the launcher, once for all ranks
        print(f"ftrt: {failure}", file=sys.stderr)
    mpi.leave(3)


def watch_what_follows(config: Config, rank: int) -> None:
    """Count an error after the end of the work as an error of the job, too."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(error))
        report(config, rank, "error", f"{kind.__name__}: {error}", text)
        before(kind, error, trace)

    sys.excepthook = hook
