"""What an agent found in the closed ledgers of its host, in a file that the others can read.

Written once for each epoch and host, before the agent says that its ledgers are closed. It is
final, whatever becomes of the agent: whoever makes the record needs nothing else of that host.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrt.agree.marks import Key, StreamMarks, merged
from ftrt.ledger.record import read_file, replace_file


@dataclass
class Closing:
    """What one host has of an epoch that ended.

    Attributes
    ----------
    seals : list of dict
        Of the ledgers of its ranks.
    marks : dict of (stream, source, dest) to StreamMarks
        What those ledgers hold.
    states : dict of str to list
        Where the state of each of its ranks lies.
    finished : list of int
        Processes of the host whose work is complete.
    dead : list of int
        Processes of the host that are gone.
    """

    seals: list[dict[str, Any]] = field(default_factory=list)
    marks: dict[Key, StreamMarks] = field(default_factory=dict)
    states: dict[str, list] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)

    def write(self, run: Path, epoch: int, host: int) -> None:
        """Leave it in the attempt's directory."""
        replace_file(
            _path(run, epoch, host),
            {
                "seals": self.seals,
                "marks": [entry.to_json() for entry in self.marks.values()],
                "states": self.states,
                "finished": self.finished,
                "dead": self.dead,
            },
        )

    @classmethod
    def read(cls, run: Path, epoch: int, host: int) -> Closing | None:
        """What a host left, None if it left nothing."""
        path = _path(run, epoch, host)
        # Asking for the directory anew makes a network file system look whether the file is there.
        if path.name not in os.listdir(run):
            return None
        found = read_file(path)
        entries = (StreamMarks.from_json(entry) for entry in found["marks"])
        marks = {entry.key: entry for entry in entries}
        return cls(found["seals"], marks, found["states"], found["finished"], found["dead"])

    def add(self, other: Closing) -> None:
        """Take in what another host has."""
        self.seals += other.seals
        self.marks = merged(self.marks, other.marks)
        self.states |= other.states
        self.finished += other.finished
        self.dead += other.dead


def _path(run: Path, epoch: int, host: int) -> Path:
    return run / f"closed-{epoch:06d}-{host}.json"
