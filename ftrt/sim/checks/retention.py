"""Retention: nothing is forgotten before it is stable, and what must be sent again is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree.marks import Marks
from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.plan import Stream
    from ftrt.sim.process import Process
    from ftrt.sim.world import World

_NOTHING = Marks()


class Retention:
    """Asks storage, not the sender, what is stable."""

    def __init__(self, world: World) -> None:
        self.world = world

    def free(self, process: Process, stream: Stream, upto: int) -> None:
        """A sender forgets everything up to a number."""
        self.free_range(process, stream, 1, upto)

    def free_range(self, process: Process, stream: Stream, first: int, last: int) -> None:
        """A sender forgets a range."""
        storage = self.world.storage
        record = storage.records[storage.latest]
        if self._zombie(process, stream):
            return  # what it forgets nobody will ask it for; its spool is fenced
        entry = record.marks.get(stream.key)
        gaps = entry.marks.missing(last, first) if entry else [(first, last)]
        if not gaps:
            return
        ledger = storage.ledger(storage.latest, stream.dest)
        written = ledger.written.get(stream.number, _NOTHING)
        for start, end in gaps:
            for seq, _ in written.missing(end, start):
                raise Violation(
                    "retention",
                    f"rank {stream.source} forgot message {seq} of {stream.name} in epoch "
                    f"{process.epoch} (the latest is {storage.latest}), which is not stable at "
                    f"rank {stream.dest}",
                )

    def _zombie(self, process: Process, stream: Stream) -> bool:
        """Whether a later epoch gave the sender's rank to another process."""
        storage = self.world.storage
        return storage.records[storage.latest].by_rank[stream.source] != process.index

    def gone(self, process: Process, stream: Stream, seq: int) -> None:
        """A message that must be sent again is nowhere."""
        if self._zombie(process, stream):
            return  # it asks for what a later epoch, in which another acts, has consumed
        raise Violation(
            "retention",
            f"rank {stream.source} must send message {seq} of {stream.name} again in epoch "
            f"{process.epoch} and has it no more",
        )
