"""Uniform agreement: whoever enters an epoch, dead or alive afterwards, has its record's members
and marks, and no one before the record exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree.agreement import AgreedRecord
from ftrt.agree.epoch import EpochId
from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.agent import Agent
    from ftrt.sim.storage import Record, Storage
    from ftrt.sim.world import World


class UniformAgreement:
    """One record a counter, the same for all."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._records: dict[int, Record] = {}

    def recorded(self, record: Record) -> None:
        """A record was stored."""
        before = self._records.setdefault(record.epoch.counter, record)
        if before is not record:
            raise Violation("agreement", f"epoch {record.epoch.counter} has two records")

    def crashed(self, storage: Storage) -> None:
        """What was recorded for good must still be there."""
        lost = [c for c in self._records if c not in storage.records]
        if lost:
            raise Violation("agreement", f"the records of epochs {lost} are lost")

    def entered(self, agent: Agent) -> None:
        """An agent's core went into an epoch."""
        core = agent.core
        record = self._records.get(core.epoch.counter)
        if record is None or record.epoch != core.epoch:
            raise Violation("agreement", f"{_name(agent)} is in {core.epoch}, which no record made")
        if core.membership.members != record.members or core.membership.spares != record.spares:
            raise Violation(
                "agreement",
                f"{_name(agent)} has members {core.membership.members} in epoch {core.epoch}, the "
                f"record {record.members}",
            )
        if core.marks != record.marks:
            raise Violation(
                "agreement",
                f"{_name(agent)} has marks {core.marks} in epoch {core.epoch}, the record "
                f"{record.marks}",
            )

    def published(self, agent: Agent, epoch: EpochId) -> None:
        """An agent lets its host see an epoch."""
        record = self.world.storage.records.get(epoch.counter)
        if record is None or record.epoch != epoch:
            raise Violation("agreement", f"{_name(agent)} publishes {epoch} without a record")

    def agreed(self, agent: Agent, record: AgreedRecord) -> None:
        """An agent's agreement came to an end."""
        found = self.world.storage.records.get(record.epoch.counter)
        if found is None or found.agreed != record:
            raise Violation("agreement", f"{_name(agent)} agreed on what is not the record")

    def announced_early(self, agent: Agent, counter: int) -> None:
        """An announcement came of a record that does not exist."""
        raise Violation("agreement", f"{_name(agent)} was told of epoch {counter} too early")


def _name(agent: Agent) -> str:
    return f"agent {agent.attempt.number}.{agent.host}"
