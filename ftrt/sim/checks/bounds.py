"""Bounded queues: rings, slots, what is under way, what is kept, what waits at an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.agree.retention import Budget
    from ftrt.sim.agent import Agent
    from ftrt.sim.plan import Stream
    from ftrt.sim.ring import Ring
    from ftrt.sim.world import World

_INBOX = 200


class BoundedQueues:
    """Compares lengths with the sizes that the plan gave."""

    def __init__(self, world: World) -> None:
        self.world = world

    def ring(self, ring: Ring, stream: Stream) -> None:
        """A frame was stored."""
        used = len(ring.frames) - ring.released
        if used > stream.window:
            raise Violation("bounds", f"{stream.name}: {used} frames in {stream.window} slots")

    def kept(self, kept: int, stream: Stream) -> None:
        """A message more is kept."""
        if kept > stream.retention:
            raise Violation("bounds", f"{stream.name}: {kept} kept of {stream.retention}")

    def credit(self, budget: Budget, stream: Stream) -> None:
        """A message was sent for the first time: the window bounds what is under way."""
        under_way = budget.sent.count - budget.consumed.count
        if under_way > stream.window:
            raise Violation("bounds", f"{stream.name}: {under_way} under way of {stream.window}")

    def slots(self, used: int, stream: Stream) -> None:
        """A message was taken in."""
        most = max(stream.window, stream.retention)
        if used > most:
            raise Violation("bounds", f"{stream.name}: {used} messages in {most} slots")

    def inbox(self, agent: Agent) -> None:
        """An event waits."""
        if len(agent.inbox) > _INBOX:
            raise Violation("bounds", f"{len(agent.inbox)} events wait at an agent")
