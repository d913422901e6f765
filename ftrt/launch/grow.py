"""``ftrt grow``: more spares for a job, from its next attempt on.

Open MPI cannot add processes to a running job safely: one that was spawned takes the job with it
when it dies. So the request waits in the ledger's directory for whoever starts the next attempt.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from ftrt.errors import UsageError
from ftrt.host.words import MAX_RANKS

_NAME = "grow.jsonl"


def grow(directory: Path, spares: int) -> str:
    """Ask for more spares; the sentence that says when they come.

    Parameters
    ----------
    directory : Path
        The job's ledger.
    spares : int
        How many more than before.

    Raises
    ------
    UsageError
        There is no job in the directory, or it cannot have so many.
    LedgerError
        Its job file cannot be read.
    """
    from ftrt.ledger.record import read_job
    from ftrt.ledger.reserve import with_room

    if spares < 1:
        raise UsageError(f"grow by {spares}: use 1 or more; a job gives no spare back")
    if not (directory / "job.json").exists():
        raise UsageError(f"{directory} holds no job; name the folder that `ftrt run` showed")
    job = read_job(directory)
    most = int(job["ranks"]) + int(job["spares"]) + grown(directory) + spares
    if most > MAX_RANKS:
        raise UsageError(
            f"grow by {spares}: {most} processes are more than the {MAX_RANKS} that a job can have "
            "on this host"
        )
    run = directory / "run"
    line = (json.dumps({"spares": spares}) + "\n").encode()
    with_room(run, lambda: _append(run / _NAME, line))
    more = f"{spares} spare{'s' * (spares != 1)} more"
    if _runs(directory):
        return (
            f"{more} from the next attempt on, not at once: MPI cannot add processes to this job "
            "while it runs. It begins again from the ledger when an attempt fails (--restarts), or "
            "when it is stopped and gone on with (--resume)"
        )
    return f"{more}: the job does not run now, `ftrt run --resume` starts them"


def grown(directory: Path) -> int:
    """How many spares were asked for since the job began."""
    path = directory / "run" / _NAME
    total = 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            total += max(0, int(json.loads(line)["spares"]))
        except (ValueError, KeyError, TypeError):  # half of a line: its writer died and was told so
            continue
    return total


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _runs(directory: Path) -> bool:
    """Whether a launcher, or the agent of a job without one, holds the directory."""
    try:
        with open(directory / "lock", "rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
