"""The network between hosts: delays, reordering, loss, cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrt.sim.world import World


class Network:
    """Carries calls from one host to another; what is cut or lost never arrives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = world.plan.loss
        self._side: dict[int, int] = {}
        self.cut_since = 0

    def reaches(self, source: int, dest: int) -> bool:
        """Whether two hosts can talk to each other now."""
        return self._side.get(source, 0) == self._side.get(dest, 0)

    def cut(self, hosts: set[int]) -> None:
        """Separate these hosts from the others; what is under way between them is lost."""
        self._side = dict.fromkeys(hosts, 1)
        self.cut_since = self.world.now

    def heal(self) -> None:
        """Join all hosts again."""
        self._side = {}
        self.cut_since = self.world.now

    def send(self, source: int, dest: int, call: Callable[..., None], *args: Any) -> None:
        """Let `call` happen at another host, later, perhaps after what is sent later, or never.

        What is sent must not be changed any more: it is on the wire. `tests/sim` compares what
        arrives with what was sent.
        """
        world = self.world
        if source != dest and not self.reaches(source, dest):
            return
        dice = world.random()
        if dice < self.loss:
            return
        delay = world.span(10, 60) if source == dest else world.span(30, 250)
        if dice > 0.97 and not world.plan.calm:
            delay *= 20
        world.after(delay, self._arrive, source, dest, world.now, call, args)

    def _arrive(
        self, source: int, dest: int, sent: int, call: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        cut = source != dest and sent < self.cut_since and not self.reaches(source, dest)
        if not cut:
            call(*args)
