"""No message of an old epoch is accepted, and none from a process that does not act in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.plan import Stream
    from ftrt.sim.process import Process
    from ftrt.sim.world import World


class NoOldEpoch:
    """Looks at what a receiver takes into a slot."""

    def __init__(self, world: World) -> None:
        self.world = world

    def accepted(self, process: Process, stream: Stream, epoch: int, sender: int) -> None:
        """A receiver took a packet."""
        record = self.world.storage.records[process.epoch]
        if epoch != process.epoch:
            raise Violation(
                "epochs",
                f"rank {process.rank} in epoch {process.epoch} took a message of epoch {epoch}",
            )
        if record.by_rank[stream.source] != sender:
            raise Violation(
                "epochs",
                f"rank {process.rank} took a message of {stream.name} from process {sender}, which "
                f"is not rank {stream.source} in epoch {epoch}",
            )
