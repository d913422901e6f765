"""Once everything has healed the job converges: no dead-lock between credit, retention,
checkpoints and recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.world import World

_REASONS = ("--spares", "cannot be written", "the agent died", "fenced")


class Liveness:
    """Looks at the end whether there is one."""

    def __init__(self, world: World) -> None:
        self.world = world

    def at_end(self) -> None:
        """The job must have ended, or failed for a named reason with no attempt left."""
        launcher = self.world.launcher
        if not launcher.over:
            raise Violation("liveness", f"no end in bounded time: {self.world.standing()}")
        reason = launcher.given_up
        if reason and not any(known in reason for known in _REASONS):
            raise Violation("liveness", f"it failed without a reason that helps: {reason}")
