"""What was promised, each promise checked by a module of its own against what really happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.checks.agreement import UniformAgreement
from ftrt.sim.checks.base import Violation
from ftrt.sim.checks.bounds import BoundedQueues
from ftrt.sim.checks.epochs import NoOldEpoch
from ftrt.sim.checks.history import OneHistory
from ftrt.sim.checks.liveness import Liveness
from ftrt.sim.checks.marks import MarksGrow
from ftrt.sim.checks.once import ExactlyOnce
from ftrt.sim.checks.retention import Retention

if TYPE_CHECKING:
    from ftrt.sim.storage import Record, Storage
    from ftrt.sim.world import World

__all__ = ["Checks", "Violation"]


class Checks:
    """All checkers of one run."""

    def __init__(self, world: World) -> None:
        self.agreement = UniformAgreement(world)
        self.once = ExactlyOnce(world)
        self.marks = MarksGrow(world)
        self.retention = Retention(world)
        self.epochs = NoOldEpoch(world)
        self.bounds = BoundedQueues(world)
        self.history = OneHistory(world)
        self.liveness = Liveness(world)

    def on_record(self, record: Record) -> None:
        """A record came to exist."""
        self.agreement.recorded(record)
        self.history.recorded(record)
        self.marks.recorded(record)
        self.once.recorded(record)

    def on_crash(self, storage: Storage) -> None:
        """A host, or all, lost what was not written."""
        self.agreement.crashed(storage)
        self.once.crashed(storage)

    def at_end(self) -> None:
        """The run is over."""
        self.liveness.at_end()
        self.once.at_end()
