"""Marks never go back: not from record to record, and not behind what was announced as stable.

Nor do they get ahead of what the sender recorded, which every message's number was before it left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree.marks import Marks
from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.agree.exchange import Exchange
    from ftrt.sim.storage import Record
    from ftrt.sim.world import World


class MarksGrow:
    """Each record has all that the record before it had."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._before: Record | None = None

    def recorded(self, record: Record) -> None:
        """Compare with the record before, and what was consumed with what was sent."""
        for key, entry in record.marks.items():
            if entry.marks.highest > entry.sent:
                raise Violation(
                    "marks", f"{key} was consumed before it was recorded as sent: {entry}"
                )
        before, self._before = self._before, record
        if before is None:
            return
        for key, old in before.marks.items():
            new = record.marks.get(key)
            lacks = _lacks(old.marks, new.marks) if new else old.marks.ranges
            if lacks or new is None or new.sent < old.sent or new.last < old.last:
                raise Violation(
                    "marks",
                    f"{key} went back in epoch {record.epoch.counter}: {old} became {new}",
                )

    def exchanged(self, exchange: Exchange) -> None:
        """What members told each other of their streams is what the record has of them."""
        record = self.world.storage.records[exchange.epoch.counter]
        before = self.world.storage.records[record.parent]
        host_of = self.world.plan.host_of
        for agent in record.agreed.members:
            for key, entry in exchange.of(agent).items():
                if host_of(before.by_rank[key[2]]) != agent:
                    continue
                marks = before.marks[key].marks.copy() if key in before.marks else Marks()
                marks.merge(entry.marks)
                if marks != record.marks[key].marks:
                    raise Violation(
                        "marks",
                        f"agent {agent} told {marks!r} of {key}, the record of epoch "
                        f"{record.epoch.counter} has {record.marks[key].marks!r}",
                    )


def _lacks(old: Marks, new: Marks) -> list[tuple[int, int]]:
    return [gap for first, last in old.ranges for gap in new.missing(last, first)]
