"""What dead processes leave in a ledger directory. Imports nothing that takes time."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import LedgerDamaged
from .record import read_job

# Made beforehand, or half made by a process that died; none of them counts.
_LEFTOVER = re.compile(
    r"((blank|claim)-[0-9a-f]{32}\.h5|spare-state-e\d{6,}-r\d{4,}\.h5|(\.?tmp|\.probe)-[0-9a-f]{32})"
)


def remove_leftovers(directory, job: str) -> None:
    """Remove what processes of ``job`` left in its ledger; none of them may live any more.

    A directory that is not this job's is left alone.
    """
    directory = Path(directory)
    try:
        if read_job(directory).get("job") != job:
            return
    except LedgerDamaged:
        return
    for folder in (directory, directory / "epochs"):
        for path in folder.glob("*"):
            if _LEFTOVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
