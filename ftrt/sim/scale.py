"""What an agreement costs at sizes that nobody here can run: the production core, one agent a
rank, on a network with a LogGP cost.

A message of k bytes costs its sender ``o + k G`` of processor time, travels for ``L``, and costs
its receiver ``o``; a processor does one thing at a time (Alexandrov et al., LogGP, SPAA 1995).
Marks do not pass through the tree: each consumer sends what it has of a stream to that stream's
producer, so nobody handles more of them than its own streams need. The tree carries who has
contributed, as runs of the tree's order, and back whom the record leaves out.
"""

from __future__ import annotations

import gc
import json
import math
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from ftrt.agree.agreement import (
    Adopt,
    AgreedRecord,
    Agreement,
    Announce,
    Call,
    Died,
    Event,
    Fence,
    RecordCreated,
    RecordFound,
    Report,
    Send,
    Tick,
    TryRecord,
)
from ftrt.agree.epoch import EpochId
from ftrt.agree.marks import Marks
from ftrt.agree.tree import Tree
from ftrt.errors import UsageError

MOST_RANKS = 65_536
LATENCY_US, OVERHEAD_US, GAP_US_PER_BYTE = 2.0, 1.66, 0.0002
RECORD_US, DETECT_US = 50.0, 300.0
HEAD_BYTES, RUN_BYTES = 32, 16
_EPOCH = EpochId("scale", 1, 2)


@dataclass
class Cost:
    """What one agreement cost."""

    ranks: int
    dead: int
    inside: int
    depth: int = 0
    time_us: float = 0.0
    messages_mean: float = 0.0
    messages_max: int = 0
    bytes_mean: float = 0.0
    bytes_max: int = 0
    mark_bytes_max: int = 0
    broken: str = ""

    def bounds(self) -> tuple[int, int]:
        """Message delays and messages a rank that are allowed for deaths before the start."""
        levels = math.log2(self.ranks)
        return math.floor(2 * levels) + 6, math.floor(4 * levels) + 16


class Network:
    """Agents, processors that do one thing at a time, and the one record.

    Parameters
    ----------
    ranks : int
    dead : int
        How many are dead before the start; everybody alive knows.
    inside : int
        How many die while the agreement runs; everybody alive hears of each by a tree.
    seed : int
    """

    def __init__(self, ranks: int, dead: int, inside: int, seed: int) -> None:
        self.cost = Cost(ranks, dead, inside)
        self.dice = random.Random(seed * 131 + ranks)
        gone = frozenset(self.dice.sample(range(ranks), dead))
        tree = Tree(tuple(range(ranks)), gone)
        self.agents = {a: Agreement(a, tree, _EPOCH, {}) for a in tree.live}
        self.record: AgreedRecord | None = None
        self.adopted: dict[int, float] = {}
        self.busy = dict.fromkeys(self.agents, 0.0)
        self.depth = dict.fromkeys(self.agents, 0)
        self.handled = dict.fromkeys(self.agents, 0)
        self.octets = dict.fromkeys(self.agents, 0)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def run(self) -> Cost:
        """Run to the end and return the cost."""
        self._marks()
        for agent in self.agents:
            self._after(0.0, self._event, agent, Tick(), 0)
        for victim in self.dice.sample(sorted(self.agents), self.cost.inside):
            self._after(self.dice.uniform(0, 60.0), self._die, victim)
        while self._queue:
            now, _, call, args = heappop(self._queue)
            call(now, *args)
        self._judge()
        return self.cost

    def _after(self, when: float, call: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heappush(self._queue, (when, self._number, call, args))

    def _marks(self) -> None:
        """Each rank consumes one stream of its neighbour: it tells that one its marks."""
        alive = sorted(self.agents)
        most = 0
        for at, agent in enumerate(alive):
            gaps = Marks(100, [(102 + 2 * g, 102 + 2 * g) for g in range(self.dice.randrange(4))])
            size = HEAD_BYTES + RUN_BYTES * len(gaps.ranges)
            most = max(most, size)
            for end in (agent, alive[at - 1]):
                self.handled[end] += 1
                self.octets[end] += size
                self.busy[end] += OVERHEAD_US
        self.cost.mark_bytes_max = most * 2

    # -- one processor -------------------------------------------------------------------------

    def _event(self, now: float, agent: int, event: Event, depth: int) -> None:
        """Let an agent handle an event once its processor is free."""
        machine = self.agents.get(agent)
        if machine is None:
            return
        if isinstance(event, Report | Call | Announce | Died):
            start = max(now, self.busy[agent])
            self.busy[agent] = now = start + OVERHEAD_US
            self.handled[agent] += 1
            self.octets[agent] += size_of(event, self.cost.ranks)
        self.depth[agent] = max(self.depth[agent], depth)
        for effect in machine.handle(event):
            if isinstance(effect, Send):
                self._send(agent, effect)
            elif isinstance(effect, TryRecord):
                self._after(self._free(agent, now) + RECORD_US, self._record, agent, effect.record)
            elif isinstance(effect, Adopt | Fence):
                self.adopted[agent] = now
                if effect.record != self.record:
                    self.cost.broken = f"agent {agent} agreed on what is not the record"

    def _free(self, agent: int, now: float) -> float:
        return max(now, self.busy[agent])

    def _send(self, agent: int, effect: Send) -> None:
        size = size_of(effect.message, self.cost.ranks)
        self.busy[agent] += OVERHEAD_US + size * GAP_US_PER_BYTE
        self.handled[agent] += 1
        self.octets[agent] += size
        arrives = self.busy[agent] + LATENCY_US
        self._after(arrives, self._event, effect.to, effect.message, self.depth[agent] + 1)

    def _record(self, now: float, agent: int, wanted: AgreedRecord) -> None:
        """Create the record exclusively: to storage and back counts as two delays."""
        made = self.record is None
        self.record = self.record or wanted
        answer = RecordCreated(wanted) if made else RecordFound(self.record)
        depth = self.depth.get(agent, 0) + 2
        if agent in self.agents:
            self._event(now, agent, answer, depth)

    def _die(self, now: float, victim: int) -> None:
        """An agent dies; its parent sees it, and the news goes down a tree over the living."""
        depth = self.depth[victim]
        del self.agents[victim]
        alive = sorted(self.agents)
        for place, agent in enumerate(alive):
            hops = (place + 1).bit_length()
            arrives = now + DETECT_US + hops * (LATENCY_US + 2 * OVERHEAD_US)
            self._after(arrives, self._event, agent, Died(victim), depth + hops)

    def _judge(self) -> None:
        cost, alive = self.cost, sorted(self.agents)
        missing = [agent for agent in alive if agent not in self.adopted]
        if self.record is None or missing:
            cost.broken = f"{len(missing)} agents never heard of a record"
            return
        cost.depth = max(self.depth[agent] for agent in alive)
        cost.time_us = max(self.adopted[agent] for agent in alive)
        cost.messages_max = max(self.handled[agent] for agent in alive)
        cost.messages_mean = sum(self.handled[agent] for agent in alive) / len(alive)
        cost.bytes_max = max(self.octets[agent] for agent in alive)
        cost.bytes_mean = sum(self.octets[agent] for agent in alive) / len(alive)
        lost = set(alive) - set(self.record.members)
        if lost and not cost.inside:
            cost.broken = f"{len(lost)} living agents are left out"
        depth, messages = cost.bounds()
        if not cost.inside and (cost.depth > depth or cost.messages_max > messages):
            cost.broken = f"{cost.depth} delays of {depth}, {cost.messages_max} of {messages}"


def size_of(event: Event | Report | Call | Announce, ranks: int) -> int:
    """Bytes of a message: contributors as runs of the tree's order, the record as who is out."""
    if isinstance(event, Report):
        return HEAD_BYTES + RUN_BYTES * len(event.have).bit_length()
    if isinstance(event, Announce):
        return HEAD_BYTES + 4 * (ranks - len(event.record.members))
    return HEAD_BYTES


def agree(ranks: int, dead: int = 0, inside: int = 0, seed: int = 0) -> Cost:
    """Run one agreement.

    Raises
    ------
    UsageError
        The numbers are out of range.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: use 2 to {MOST_RANKS}")
    if dead + inside >= ranks:
        raise UsageError(f"{dead + inside} of {ranks} ranks cannot die: nobody would be left")
    gc.disable()  # nothing here is garbage before the end, and there is much of it
    try:
        return Network(ranks, dead, inside, seed).run()
    finally:
        gc.enable()


def memory_bytes(ranks: int) -> int:
    """Bytes of the coordinator's agreement, which has everybody's contribution."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tree = Tree(tuple(range(ranks)))
    machine = Agreement(0, tree, _EPOCH, {})
    for child in tree.children(0):
        machine.handle(Report(child, {agent: {} for agent in tree.below(child)}))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used


def scale_command(
    echo: Callable[[str], object], ranks: int, seeds: int, seed: int, as_json: bool
) -> int:
    """Run `ftrt sim` beyond the sizes that are simulated whole: agreements alone."""
    if not 1 <= seeds <= 10_000 or not 0 <= seed < 1 << 62:
        raise UsageError(
            f"--seeds {seeds} --seed {seed}: beyond 32 ranks use 1 to 10000 seeds, from 0 on"
        )
    start = time.monotonic()
    costs = []
    for number in range(seed, seed + seeds):
        dead = (0, 1, 8, -(-ranks // 100))[number % 4]
        costs.append((number, agree(ranks, dead, 0, number)))
    found = _report(costs, time.monotonic() - start)
    if as_json:
        echo(json.dumps(found, indent=2))
    else:
        most = found["messages_per_rank"]["max"]
        echo(
            f"{seeds} agreements of {ranks} ranks: {found['violations']} violations; depth "
            f"{found['depth']} of {found['depth_bound']}, at most {most} of "
            f"{found['messages_bound']} messages a rank, {found['time_us']} us"
        )
        for number, cost in costs:
            if cost.broken:
                echo(f"seed {number}: {cost.broken}")
                echo(f"repeat it: ftrt sim --ranks {ranks} --seeds 1 --seed {number}")
                break
    return 1 if found["violations"] else 0


def _report(costs: list[tuple[int, Cost]], seconds: float) -> dict[str, Any]:
    bad = [number for number, cost in costs if cost.broken]
    every = [cost for _, cost in costs]
    depth, messages = every[0].bounds()
    return {
        "seeds": len(every),
        "violations": len(bad),
        "first_bad_seed": bad[0] if bad else None,
        "messages_per_rank": {
            "mean": round(_mean(cost.messages_mean for cost in every), 3),
            "max": max(cost.messages_max for cost in every),
        },
        "messages_bound": messages,
        "depth": max(cost.depth for cost in every),
        "depth_bound": depth,
        "time_us": round(max(cost.time_us for cost in every), 1),
        "bytes_per_rank": {
            "mean": round(_mean(cost.bytes_mean for cost in every), 1),
            "max": max(cost.bytes_max for cost in every),
        },
        "seeds_per_s": round(len(every) / max(seconds, 1e-9), 2),
    }


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
