"""The ledger's directory as a launcher holds it: for a new job, or to go on with one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrt.errors import LedgerError, UsageError
from ftrt.launch import leftovers

if TYPE_CHECKING:
    from ftrt.launch.options import Options

#: What a job is: with anything else of these its messages would be others.
_SAME = ("program", "args", "ranks", "stable", "seed")


def job_of(directory: Path | None, options: Options) -> str:
    """The job to run: a new one, or with ``--resume`` the one in ``directory``.

    Raises
    ------
    UsageError
        There is none to go on with, or it is not the one that the command line describes.
    LedgerDamaged
        Its job file cannot be read.
    """
    from ftrt.ledger.record import read_job

    if not options.resume:
        return str(uuid.uuid4())
    if directory is None:
        raise UsageError("--resume needs --ledger DIR, the ledger of the job to go on with")
    if not (directory / "job.json").exists():
        raise UsageError(f"--resume: {directory} holds no job; leave --resume out to begin one")
    found, asked = read_job(directory), _facts(options)
    for name in _SAME:
        if found.get(name) != asked[name]:
            raise UsageError(
                f"--resume: the job in {directory} has {name} {found.get(name)!r}, not "
                f"{asked[name]!r}: type the command that began it, and --resume"
            )
    return str(found["job"])


@contextlib.contextmanager
def held(directory: Path, job: str, options: Options, several: bool = False) -> Iterator[int]:
    """Make the directory the job's own for as long as it runs; the number of the first attempt.

    ``several`` says that other hosts see it, which was tried.
    """
    from ftrt.ledger.leftovers import remove_leftovers
    from ftrt.ledger.record import check_directory, create_job, lock_directory

    check_directory(directory, stable=options.stable, seen_elsewhere=several)
    with lock_directory(directory):
        check_directory(directory, job)
        if not create_job(directory, {"job": job, **_facts(options)}) and not options.resume:
            raise LedgerError(f"{directory}: another job began here meanwhile; choose another")
        run = directory / "run"
        run.mkdir(exist_ok=True)
        last = max((_number(path) for path in run.glob("attempt-*")), default=0)
        if last:
            # Its launcher is gone, or we would not have the lock; others may be on their way out.
            leftovers.clean(job, run / f"attempt-{last}")
        try:
            yield last + 1
        finally:
            remove_leftovers(directory, job)


def _number(path: Path) -> int:
    text = path.name.removeprefix("attempt-")
    return int(text) if text.isdecimal() else 0  # attempt-N.start tells when one began


def _facts(options: Options) -> dict[str, Any]:
    return {
        "ranks": options.ranks,
        "spares": options.spares,
        "stable": options.stable,
        "seed": options.seed,
        "program": str(Path(options.program).resolve()),
        "args": list(options.args),
    }
