"""The simulated world: one clock, one source of chance, one queue of what will happen."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from ftrt.errors import InvariantBroken
from ftrt.sim.checks import Checks, Violation
from ftrt.sim.faults import Faults
from ftrt.sim.launcher import Launcher
from ftrt.sim.network import Network
from ftrt.sim.plan import Plan
from ftrt.sim.ring import Ring
from ftrt.sim.storage import Storage

#: After the healing the job must be over within this time and this many events.
CONVERGE_US = 400_000
MOST_EVENTS = 200_000
_TRACE_LINES = 4000


class World:
    """Everything of one run.

    Parameters
    ----------
    plan : Plan
    tracing : bool
        Keep lines of what happens; a run without is faster and otherwise the same.
    """

    def __init__(self, plan: Plan, tracing: bool = False) -> None:
        self.plan = plan
        self.tracing = tracing
        self.trace: list[str] = []
        self.dice = random.Random(plan.seed ^ 0x5EED)
        self.random = self.dice.random
        self.now = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.healed = False
        self.rows: dict[tuple[str, str, str], int] = {}
        self.messages: list[int] = []
        self.depth = 0
        self.recoveries = self.inherited = 0
        self.checks = Checks(self)
        self.storage = Storage(self)
        self.network = Network(self)
        self.rings: dict[tuple[int, int], list[Ring]] = {}
        self.launcher = Launcher(self)
        self.faults = Faults(self)

    # -- time --------------------------------------------------------------------------------

    def after(self, delay: int, call: Callable[..., None], *args: Any) -> None:
        """Do something later."""
        self._number += 1
        heappush(self._queue, (self.now + delay, self._number, call, args))

    def span(self, least: int, most: int) -> int:
        """Draw a delay; a calm plan has the shortest always."""
        return least if self.plan.calm else least + int(self.random() * (most - least))

    def lag(self, most: int) -> int:
        """Draw a delay of something that may come late; a calm plan has the longest always."""
        return most if self.plan.calm else int(self.random() * most)

    def chance(self, probability: float) -> bool:
        """Throw the dice; never true in a calm plan."""
        return self.random() < probability and not self.plan.calm

    def note(self, text: str) -> None:
        """Keep a line of the trace."""
        if len(self.trace) < _TRACE_LINES:
            self.trace.append(f"{self.now:7d} {text}")

    def count(self, machine: str, state: str, event: str) -> None:
        """Count that a row of a transition table was taken."""
        row = (machine, state, event)
        self.rows[row] = self.rows.get(row, 0) + 1

    # -- running -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run both phases.

        Raises
        ------
        Violation
            A promise was broken; an InvariantBroken of the core counts as one.
        """
        try:
            self.launcher.start()
            self.faults.arm()
            self._drain(self.plan.heals_us)
            self.faults.heal()
            self.healed = True
            self._drain(self.now + CONVERGE_US)
            self.checks.at_end()
        except InvariantBroken as error:
            raise Violation("invariant", str(error)) from error

    def _drain(self, until: int) -> None:
        queue, launcher = self._queue, self.launcher
        while queue and queue[0][0] <= until:
            if self.healed and launcher.over:
                return
            self.now, number, call, args = heappop(queue)
            if number > MOST_EVENTS:
                raise Violation("liveness", f"still busy after {number} events: {self.standing()}")
            call(*args)
        if not self.healed:
            self.now = until

    def standing(self) -> str:
        """Say where everybody stands, for an error."""
        return "; ".join(self.launcher.standing())
