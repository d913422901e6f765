"""What the command line asked for, and what of it cannot work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrt.errors import UsageError
from ftrt.host.words import MAX_RANKS
from ftrt.launch.faults import Fault, validate


@dataclass(frozen=True)
class Options:
    """What the command line asked for; see ``ftrt run --help``."""

    program: str
    args: Sequence[str] = ()
    ranks: int = 1
    spares: int = 0
    restarts: int = 0
    stable: str = "process"
    plane: str = "host"
    standby: int = 1
    ledger: str | None = None
    resume: bool = False
    faults: Sequence[Fault] = ()
    seed: int = 0
    json_file: str | None = None
    mpirun: str | None = None
    stall_timeout_s: float | None = None
    evict_timeout_s: float | None = None
    hosts: str | None = None
    min_ranks: int = 0
    heirs: str | None = None


def check(options: Options) -> None:
    """Raise UsageError, with what to type, for options that cannot work."""
    if options.ranks < 1:
        raise UsageError("-n must be at least 1; for example -n 4")
    if options.spares < 0 or options.restarts < 0:
        raise UsageError("--spares and --restarts cannot be negative")
    if options.min_ranks < 0:
        raise UsageError("--min-ranks must be at least 1; for example --min-ranks 2")
    if options.ranks + options.spares > MAX_RANKS:
        raise UsageError(
            f"-n {options.ranks} and --spares {options.spares} are more than the {MAX_RANKS} "
            "processes that a job can have on this host"
        )
    for name in ("stall_timeout_s", "evict_timeout_s"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} must be greater than 0; for example --{option} 5")
    for fault in options.faults:
        validate(fault, options.ranks, options.stable, options.plane)
    if options.ledger == "":
        raise UsageError("--ledger names no folder; leave it out for a new one here")
    program = Path(options.program)
    if options.program.startswith("-"):
        raise UsageError(
            f"there is no option {options.program}; `ftrt run --help` lists those that come "
            "before PROGRAM"
        )
    if not program.is_file():
        raise UsageError(
            f"there is no program {options.program!r}; name a Python file or executable"
        )
    if program.suffix != ".py" and not os.access(program, os.X_OK):
        raise UsageError(
            f"{options.program!r} is neither a .py file nor executable; type `chmod +x` first"
        )
    if options.json_file is not None:
        _check_file("--json", Path(options.json_file))


def _check_file(option: str, path: Path) -> None:
    """Refuse beforehand a file that could not be written at the end."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {str(path)!r}: its folder does not exist")
    if path.is_dir():
        raise UsageError(f"{option} {str(path)!r} is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {str(path)!r}: you may not write there; name another file")
