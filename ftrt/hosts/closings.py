"""What an agent found in the closed ledgers of its host, in a file that the others can read.

Written once for each epoch and host, before the agent says that its ledgers are closed. It is
final, whatever becomes of the agent: whoever makes the record needs nothing else of that host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrt.agree.marks import Key, StreamMarks, merged
from ftrt.agree.steps import Situation
from ftrt.host.evidence import Ledgers, stream_marks
from ftrt.ledger.record import read_file, replace_file, sync_path
from ftrt.runtime.config import Config


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


class HostLedgers:
    """Closes what ranks of one host wrote in an epoch, and gathers what all hosts wrote.

    Parameters
    ----------
    config : Config
    ledgers : Ledgers
        The agent's.
    """

    def __init__(self, config: Config, ledgers: Ledgers) -> None:
        self._config, self._ledgers = config, ledgers

    def ranks_of(self, record: dict, host: int) -> list[int]:
        """The ranks that ran on a host in the epoch of ``record``."""
        of = self._config.host_of
        return [m["rank"] for m in record["members"] if of(m["process"]) == host]

    def close(self, record: dict, now: Situation) -> Closing:
        """End the ledgers of this host's ranks, and write out what others may need of them."""
        epoch, process_of = record["epoch"], now.membership.process_of
        seals = self._ledgers.close(epoch, self.ranks_of(record, self._config.host))
        states = self._states(record, seals)
        gone = [rank for rank in seals if process_of(rank) in now.dead]
        self._ledgers.leave(epoch + 1, gone)  # whoever goes on with them may be elsewhere
        for rank in seals if self._config.durable else gone:
            self._write_out(seals[rank], states.get(str(rank), []), rank)
        return Closing(
            [entry for of_rank in seals.values() for entry in of_rank],
            stream_marks(self._config.ledger, seals),
            states,
            [process_of(rank) for rank in seals if rank in now.finished],
            sorted(now.dead.intersection(self._config.own)),
        )

    def _states(self, record: dict, seals: dict[int, list[dict]]) -> dict[str, list]:
        before = {str(rank): record["states"].get(str(rank), []) for rank in seals}
        return self._ledgers.states(record["epoch"], seals, before)

    def _write_out(self, seals: list[dict], states: list[dict], rank: int) -> None:
        """Have other hosts see what a rank left: it may go on there."""
        names = {entry["file"] for entry in (*seals, *states)}
        kept = self._config.ledger.glob(f"*-r{rank:04d}-e*.bin")
        for path in [*kept, *(self._config.ledger / name for name in sorted(names))]:
            with contextlib.suppress(FileNotFoundError):  # a spool that was freed just now
                sync_path(path)

    def gather(self, record: dict, inside: Collection[int]) -> Closing | None:
        """What all hosts have of an epoch; None if what one of ``inside`` wrote is not seen yet.

        Of a host that did not come what it had written before counts, else its durable marks.

        Raises
        ------
        LedgerError
            A host did not come, and its memory had what the class does not keep.
        """
        gathered, epoch = Closing(), record["epoch"]
        for host in record["hosts"]:
            found = Closing.read(self._config.run_directory, epoch, host)
            if found is not None:
                gathered.add(found)
            elif host in inside:
                return None
            else:
                gathered.add(self._close_for(record, self.ranks_of(record, host)))
        return gathered

    def _close_for(self, record: dict, ranks: list[int]) -> Closing:
        """End ledgers of a host that is lost, as far as they can be read without it."""
        seals = self._ledgers.close(record["epoch"], ranks)
        self._ledgers.leave(record["epoch"] + 1, ranks)
        entries = [entry for of_rank in seals.values() for entry in of_rank]
        marks = stream_marks(self._config.ledger, seals)
        return Closing(entries, marks, self._states(record, seals))


def _path(run: Path, epoch: int, host: int) -> Path:
    return run / f"closed-{epoch:06d}-{host}.json"
