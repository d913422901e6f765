"""What an agreement costs at sizes that nobody here can run: the production core, one agent a
rank, on a network with a LogGP cost.

A message of k bytes costs its sender ``o + k G`` of processor time, travels for ``L``, and costs
its receiver ``o``; a processor does one thing at a time (Alexandrov et al., LogGP, SPAA 1995).
Ranks form a ring of streams. The tree carries who takes part, as runs of numbers, and back whom the
record leaves out; marks go between the two ends of a stream (`ftrt.agree.exchange`), and a rank is
through when it has the record and the marks of its streams. What a dead rank's ledger holds is read
from storage once the record says that it counts.
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
    AgreedRecord,
    Agreement,
    Announce,
    Call,
    Died,
    Effect,
    Event,
    RecordCreated,
    RecordFound,
    Report,
    Send,
    Tick,
    TryRecord,
)
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.events import LedgersClosed, ProcessDied
from ftrt.agree.events import RecordCreated as OurRecordCreated
from ftrt.agree.exchange import Exchange, Table, Told
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.agree.recovery import Recovery
from ftrt.agree.tree import Tree, runs
from ftrt.errors import UsageError

MOST_RANKS = 65_536
LATENCY_US, OVERHEAD_US, GAP_US_PER_BYTE = 2.0, 1.66, 0.0002
RECORD_US, DETECT_US = 50.0, 300.0
#: A message's head; a run of ranks or the number of one; a stream's key and counts; a run of marks.
HEAD_BYTES, RUN_BYTES, NUMBER_BYTES, STREAM_BYTES, MARK_BYTES = 32, 8, 4, 40, 16
#: Through storage and back counts as two delays.
STORAGE_DELAYS = 2
_EPOCH = EpochId("scale", 1, 2)
_ALL = range(MOST_RANKS)

Message = Report | Call | Announce | Told


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
        """Message delays, and messages a rank, that are allowed.

        The messages are for deaths before the start; each death inside may cost log2(n) + 4 delays.
        """
        levels = math.log2(self.ranks)
        inside = self.inside * (math.floor(levels) + 4)
        return math.floor(2 * levels) + 6 + inside, math.floor(4 * levels) + 16

    def bytes_bound(self) -> int:
        """Bytes a rank may handle: its own streams' marks, and who is in and who is out.

        Six messages that carry names: three Reports, each with a run a level and one more for each
        rank that is dead, and three Announces.
        """
        levels = math.floor(math.log2(self.ranks)) + 1
        names = RUN_BYTES * (levels + self.dead) + NUMBER_BYTES * self.dead
        return self.mark_bytes_max + 3 * names + HEAD_BYTES * self.bounds()[1]


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
        self.agents = {a: Agreement(a, tree, _EPOCH) for a in tree.live}
        home = {rank: rank for rank in range(ranks)}
        tables = (self._table(rank) for rank in range(ranks))
        self.exchanges = {a: Exchange(a, _EPOCH, t, home) for a, t in enumerate(tables)}
        self.record: AgreedRecord | None = None
        self.adopted: dict[int, float] = {}
        self.through: dict[int, float] = {}
        self.busy = dict.fromkeys(self.agents, 0.0)
        self.depth = dict.fromkeys(self.agents, 0)
        self.handled = dict.fromkeys(self.agents, 0)
        self.octets = dict.fromkeys(self.agents, 0)
        self.marks = dict.fromkeys(self.agents, 0)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def run(self) -> Cost:
        """Run to the end and return the cost."""
        for agent in self.agents:
            self._after(0.0, self._tell_marks, agent)
            self._after(0.0, self._event, agent, Tick(), HEAD_BYTES, 0)
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

    def _table(self, rank: int) -> Table:
        """What a rank's ledger holds: it consumes from the rank before it and sends to the next."""
        ranks = self.cost.ranks
        gaps = Marks(100, [(102 + 2 * g, 102 + 2 * g) for g in range(self.dice.randrange(4))])
        consumed = StreamMarks("s", (rank - 1) % ranks, rank, gaps)
        sent = StreamMarks("s", rank, (rank + 1) % ranks, sent=120)
        return {consumed.key: consumed, sent.key: sent}

    def _tell_marks(self, now: float, agent: int) -> None:
        for to, told in self.exchanges[agent].begin():
            self._send(agent, to, told)

    # -- one processor -------------------------------------------------------------------------

    def _event(self, now: float, agent: int, event: Event | Told, size: int, depth: int) -> None:
        """Let an agent handle an event once its processor is free."""
        machine = self.agents.get(agent)
        if machine is None:
            return
        if isinstance(event, Report | Call | Announce | Died | Told):
            now = self.busy[agent] = self._free(agent, now) + OVERHEAD_US
            self._handled(agent, size)
        self.depth[agent] = max(self.depth[agent], depth)
        if isinstance(event, Told):
            self.exchanges[agent].handle(event)
        else:
            self._perform(now, agent, machine.handle(event))
            if isinstance(event, Died) and agent in self.adopted:
                self._read_marks(now, agent)
        self._look_through(now, agent)

    def _perform(self, now: float, agent: int, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(agent, effect.to, effect.message)
            elif isinstance(effect, TryRecord):
                self._after(self._free(agent, now) + RECORD_US, self._record, agent, effect.record)
            else:
                self.adopted[agent] = now
                if effect.record != self.record:
                    self.cost.broken = f"agent {agent} agreed on what is not the record"
                self._read_marks(now, agent)

    def _look_through(self, now: float, agent: int) -> None:
        """Notice that a rank has all that it waits for: the record and its streams' marks."""
        exchange = self.exchanges[agent]
        if agent in self.adopted and agent not in self.through and not exchange.lacks(_ALL):
            self.through[agent] = now

    def _read_marks(self, now: float, agent: int) -> None:
        """Read from storage what nobody will tell any more."""
        for other in self.exchanges[agent].lacks(_ALL):
            if other not in self.agents:
                arrives = self._free(agent, now) + RECORD_US
                told = dict(self.exchanges[other].begin())[agent]
                depth = self.depth[agent] + STORAGE_DELAYS
                self._after(
                    arrives, self._event, agent, told, size_of(told, self.cost.ranks), depth
                )

    def _free(self, agent: int, now: float) -> float:
        return max(now, self.busy[agent])

    def _handled(self, agent: int, size: int) -> None:
        self.handled[agent] += 1
        self.octets[agent] += size

    def _send(self, agent: int, to: int, message: Message) -> None:
        size = size_of(message, self.cost.ranks)
        self.busy[agent] += OVERHEAD_US + size * GAP_US_PER_BYTE
        self._handled(agent, size)
        if isinstance(message, Told):
            self.marks[agent] += size
        arrives = self.busy[agent] + LATENCY_US
        self._after(arrives, self._event, to, message, size, self.depth[agent] + 1)

    def _record(self, now: float, agent: int, wanted: AgreedRecord) -> None:
        """Create the record exclusively."""
        made = self.record is None
        self.record = self.record or wanted
        answer = RecordCreated(wanted) if made else RecordFound(self.record)
        depth = self.depth.get(agent, 0) + STORAGE_DELAYS
        if agent in self.agents:
            self._event(now, agent, answer, 0, depth)

    def _die(self, now: float, victim: int) -> None:
        """An agent dies; its parent sees it, and the news goes down a tree over the living."""
        depth = self.depth[victim]
        del self.agents[victim]
        alive = sorted(self.agents)
        for place, agent in enumerate(alive):
            hops = (place + 1).bit_length()
            arrives = now + DETECT_US + hops * (LATENCY_US + 2 * OVERHEAD_US)
            self._after(arrives, self._event, agent, Died(victim), HEAD_BYTES, depth + hops)
            for _ in alive[2 * place + 1 : 2 * place + 3]:
                self._handled(agent, HEAD_BYTES)  # it passes the news on

    def _judge(self) -> None:
        cost, alive = self.cost, sorted(self.agents)
        missing = [agent for agent in alive if agent not in self.through]
        if self.record is None or missing:
            cost.broken = f"{len(missing)} agents never had a record and their streams' marks"
            return
        cost.depth = max(self.depth[agent] for agent in alive)
        cost.time_us = max(self.through[agent] for agent in alive)
        cost.messages_max = max(self.handled[agent] for agent in alive)
        cost.messages_mean = sum(self.handled[agent] for agent in alive) / len(alive)
        cost.bytes_max = max(self.octets[agent] for agent in alive)
        cost.mark_bytes_max = max(self.marks.values())
        cost.bytes_mean = sum(self.octets[agent] for agent in alive) / len(alive)
        lost = set(alive) - set(self.record.members)
        if lost and not cost.inside:
            cost.broken = f"{len(lost)} living agents are left out"
        depth, messages = cost.bounds()
        if cost.depth > depth or (not cost.inside and cost.messages_max > messages):
            cost.broken = f"{cost.depth} delays of {depth}, {cost.messages_max} of {messages}"
        elif not cost.inside and cost.bytes_max > cost.bytes_bound():
            cost.broken = f"{cost.bytes_max} bytes of {cost.bytes_bound()}"


def size_of(message: Message, ranks: int) -> int:
    """Bytes of a message: who takes part as runs of numbers, a record as who is left out."""
    if isinstance(message, Report):
        return HEAD_BYTES + RUN_BYTES * len(runs(message.have))
    if isinstance(message, Announce):
        return HEAD_BYTES + NUMBER_BYTES * (ranks - len(message.record.members))
    if isinstance(message, Told):
        entries = message.marks.values()
        marks = sum(len(entry.marks.ranges) for entry in entries)
        return HEAD_BYTES + STREAM_BYTES * len(entries) + MARK_BYTES * marks
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
    """Most bytes that the coordinator's core ever has, which is told of everybody.

    Its agreement, its streams' marks, and its host's recovery, through the death of a rank.
    """
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    home = {rank: rank for rank in range(ranks)}
    exchange = Exchange(0, _EPOCH, {("s", 0, 1): StreamMarks("s", 0, 1, sent=9)}, home)
    core = Recovery(EpochId("scale", 1, 1), Membership.initial(ranks, 1))
    core.handle(ProcessDied(1, "pidfd"))
    tree = Tree(tuple(range(ranks))).turned(1)
    machine = Agreement(0, tree, _EPOCH)
    for child in tree.children(0):
        machine.handle(Report(child, frozenset(tree.below(child))))
    machine.handle(RecordCreated(AgreedRecord(_EPOCH, 0, tree.live)))
    exchange.handle(Told(1, _EPOCH, {("s", 0, 1): StreamMarks("s", 0, 1, Marks(9))}))
    core.handle(LedgersClosed(core.epoch, exchange.result()))
    core.handle(OurRecordCreated(_EPOCH))
    used = tracemalloc.get_traced_memory()[1] - before
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
