"""Retention: nothing is forgotten before it is stable, and what must be sent again is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.plan import Stream
    from ftrt.sim.process import Process
    from ftrt.sim.world import World


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
        if record.by_rank[stream.source] != process.index:
            return  # a zombie: what it forgets nobody will ask it for; its spool is fenced
        entry = record.marks.get(stream.key)
        gaps = entry.marks.missing(last, first) if entry else [(first, last)]
        if not gaps:
            return
        ledger = storage.ledger(storage.latest, stream.dest)
        process_class = self.world.plan.stable == "process"
        length = len(ledger.events) if process_class else ledger.durable
        have = {s for i, s, _, _ in ledger.events[:length] if i == stream.number}
        for start, end in gaps:
            for seq in range(start, end + 1):
                if seq not in have:
                    raise Violation(
                        "retention",
                        f"rank {stream.source} forgot message {seq} of {stream.name} in epoch "
                        f"{process.epoch} (the latest is {storage.latest}), which is not stable at "
                        f"rank {stream.dest}",
                    )

    def gone(self, process: Process, stream: Stream, seq: int) -> None:
        """A message that must be sent again is nowhere."""
        raise Violation(
            "retention",
            f"rank {stream.source} must send message {seq} of {stream.name} again in epoch "
            f"{process.epoch} and has it no more",
        )
