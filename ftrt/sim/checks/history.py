"""One history: each epoch succeeds the one before it, and in each one process acts for a rank,
also when the job was cut in two or started again while it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrt.agree import effects as fx
from ftrt.agree.marks import Marks
from ftrt.sim.checks.base import Violation

if TYPE_CHECKING:
    from ftrt.sim.agent import Agent
    from ftrt.sim.process import Process
    from ftrt.sim.storage import Ledger, Record
    from ftrt.sim.world import World


class OneHistory:
    """Follows who opens and writes the ledgers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._last: Record | None = None

    def recorded(self, record: Record) -> None:
        """A record was stored."""
        last, self._last = self._last, record
        if last is not None and record.parent != last.epoch.counter:
            raise Violation(
                "history", f"epoch {record.epoch} succeeds {record.parent}, not {last.epoch}"
            )
        for rank, process in record.members:
            if process in record.dead and last is not None and last.by_rank.get(rank) != process:
                raise Violation(
                    "history", f"epoch {record.epoch} gives rank {rank} to dead process {process}"
                )
        if last is not None and record.epoch.attempt < last.epoch.attempt:
            raise Violation("history", f"epoch {record.epoch} came after {last.epoch}")

    def opened(self, process: Process, ledger: Ledger) -> None:
        """A process opens the ledger of its rank."""
        if ledger.owner not in (None, process.index):
            raise Violation(
                "history",
                f"processes {ledger.owner} and {process.index} both act for rank {process.rank} "
                f"in epoch {ledger.epoch}",
            )
        self._same_past(process)

    def _same_past(self, process: Process) -> None:
        """Whoever goes on has in memory what the record has, no more and no less."""
        record = process.record
        for receiver in process.receivers:
            entry = record.marks.get(receiver.stream.key)
            marks = entry.marks if entry else Marks()
            if receiver.marks != marks:
                raise Violation(
                    "history",
                    f"rank {process.rank} (process {process.index}) goes on into epoch "
                    f"{process.epoch} with {receiver.marks!r} of {receiver.stream.name}, the "
                    f"record has {marks!r}",
                )

    def committed(self, process: Process, ledger: Ledger) -> None:
        """A commit succeeded."""
        record = self.world.storage.records.get(ledger.epoch)
        if record is None or record.by_rank.get(ledger.rank) != process.index:
            raise Violation(
                "history",
                f"process {process.index} committed for rank {ledger.rank} in epoch {ledger.epoch},"
                " in which another acts",
            )
        if not process.alive or process.stopped:
            raise Violation("history", f"process {process.index} acts though it is held or dead")

    def quiet(self, agent: Agent, effects: tuple[fx.Effect, ...]) -> None:
        """A core that came to its end was told of something."""
        if effects:
            raise Violation("history", f"a core that is over asked for {effects}")

    def promoted(self, agent: Agent, effect: fx.Promote | fx.Inherit) -> None:
        """A process is told that it acts for a rank, or for one more."""
        record = self.world.storage.records.get(effect.epoch.counter)
        if record is None or record.by_rank.get(effect.rank) != effect.process:
            raise Violation("history", f"{effect} is not what the record says")
        if agent.board.epoch < effect.epoch.counter:
            raise Violation("history", f"{effect} came before its epoch was published")
