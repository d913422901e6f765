"""A rank as the process sees it that acts for it: its streams, its ledger, its state.

Usually a process has one seat, the :class:`ftrt.Runtime`. Where a job shrinks, it inherits those of
dead ranks as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ftrt.agree.marks import Marks
from ftrt.errors import UsageError
from ftrt.host.board import Field
from ftrt.host.timing import Stages
from ftrt.ledger import state as ledger_state
from ftrt.ledger.log import Ledger, LedgerClosed
from ftrt.ledger.seal import consumed_so_far, durably_consumed
from ftrt.ledger.spool import Spool
from ftrt.ledger.sync import Syncer
from ftrt.runtime import arguments, forked
from ftrt.runtime.digests import Digests
from ftrt.runtime.receiver import Receiver
from ftrt.runtime.sender import SLOT_BYTES, SLOTS, Sender
from ftrt.transport.factory import Link

if TYPE_CHECKING:
    from ftrt.runtime.config import Config
    from ftrt.runtime.job import Job
    from ftrt.runtime.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class StreamState:
    """What the record of an epoch says of one stream at one receiver."""

    marks: Marks
    delivered: int
    next_seq: int


class Seat:
    """One rank that this process acts for.

    Attributes
    ----------
    rank, size : int
        Logical rank and number of ranks; they do not change when processes are replaced.
    """

    _injector: Any

    def _sit(self, main: Runtime, rank: int) -> None:
        """Take a rank, without its ledger yet."""
        self._main = main
        self.config: Config = main.config
        self.job: Job = main.job
        self.rank, self.size = rank, main.config.ranks
        self._ends: set[tuple[str, str, str]] = set()
        self._syncer: Syncer | None = None
        if self.config.durable:
            self._syncer = Syncer(self.config.ledger, rank, self.config.sync_interval_s)

    @property
    def since_epoch(self) -> int:
        """The epoch from which on this process acts for the rank."""
        members = self.job.record["members"]
        return next(m["since"] for m in members if m["rank"] == self.rank)

    @property
    def stages(self) -> Stages | None:
        """The times of this process's take-over, None where it took over nothing."""
        return self._main._stages

    @property
    def epoch(self) -> int:
        """Counter of the epoch this rank is in."""
        return self.job.epoch

    def advance(self) -> None:
        """Move to the epoch in force: our ledger of the old one is closed."""
        self._main.advance()

    def wait(self, ready: Callable[[], object], what: str, timeout_s: float | None = None):
        """See :meth:`Runtime.wait`."""
        return self._main.wait(ready, what, timeout_s)

    def note(self, event: str, **fields) -> None:
        """Write an event of this rank."""
        fields.setdefault("rank", self.rank)
        self._main.events.write(event, process=self.job.process, epoch=self.epoch, **fields)

    @property
    def stable_is_later(self) -> bool:
        """Whether the class of the job asks for more than a commit in memory."""
        return self._syncer is not None

    def stream_log(self, kind: int, stream: str, source: int, dest: int):
        """Log of a stream's end in the epoch in force."""
        while True:
            try:
                return self.ledger.stream(kind, stream, source, dest)
            except LedgerClosed:
                self.advance()

    def _open_ledger(self) -> None:
        config, before = self.config, getattr(self, "ledger", None)
        self.ledger = Ledger.open(
            self._main._pool,
            job=config.job,
            attempt=config.attempt,
            epoch=self.job.epoch,
            rank=self.rank,
            incarnation=self.job.process + 1,
        )
        self._store = ledger_state.StateStore(
            config.ledger,
            self.job.epoch,
            self.rank,
            published=self.ledger.published,
        )
        if self._syncer is not None:
            self._syncer.watch(self.ledger, self._store)
        if before is not None:
            before.leave()

    # -- streams -----------------------------------------------------------------------------

    def sender(
        self,
        stream: str,
        to: int | Iterable[int],
        *,
        replay: Callable[[int], np.ndarray] | None = None,
        spool: bool = False,
        volatile: bool = False,
        slot_bytes: int = SLOT_BYTES,
        window: int = SLOTS,
        retention_bytes: int | None = None,
    ) -> Sender:
        """Open the sending end of ``(stream, this rank)``.

        Parameters
        ----------
        stream : str
            Name, at most 64 bytes.
        to : int or iterable of int
            Receiving rank or ranks.
        replay : callable, optional
            ``replay(seq)`` makes message ``seq`` again, the same to the bit. With several
            receivers a message that differs from the one that left first is not sent:
            :class:`ftrt.errors.ReplayMismatch` is raised by the call that would have sent it.
        spool : bool
            Keep the payloads on the ledger's storage until they are consumed everywhere.
        volatile : bool
            Accept that what only this process had is lost when it dies.
        slot_bytes : int
            Payload bytes of a slot; a larger message is split over several.
        window : int
            Number of slots, at least 2. They are the credit of the sender: what may be under way
            at a time, freed when the receiver consumes.
        retention_bytes : int, optional
            The most that spool or copies take, freed when what every receiver consumed is stable
            at the class of the job; a send that finds no room waits for it. By default 256 MiB,
            or four windows if that is more. At least a window: a receiver may need one whole
            before it consumes any of it.
        """
        arguments.stream_name(stream)
        arguments.again(stream, replay, spool, volatile)
        window, slot_bytes = arguments.sizes(stream, window, slot_bytes)
        dests = arguments.destinations(stream, to, self.rank, self.size)
        for dest in dests:
            self._open_once("sender", stream, f"to rank {dest}")
        made = Sender(
            self,
            stream,
            dests,
            replay=replay,
            spool=spool,
            volatile=volatile,
            slot_bytes=slot_bytes,
            window=window,
            retention_bytes=retention_bytes,
        )
        self._main._senders.append(made)
        self._bind(made)
        made.resend_missing()
        if (stages := self.stages) is not None:
            stages.end(Field.RESENT)
        return made

    def receiver(self, stream: str, source: int) -> Receiver:
        """Open the receiving end of ``(stream, source)`` at this rank."""
        arguments.stream_name(stream)
        source = arguments.source_rank(stream, source, self.rank, self.size)
        self._open_once("receiver", stream, f"from rank {source}")
        if self._syncer is not None:
            self._syncer.add_source(stream, source)
        made = Receiver(self, stream, source)
        self._main._receivers.append(made)
        self._bind(made)
        return made

    def _open_once(self, end: str, stream: str, other: str) -> None:
        """A second end would begin at numbers that the first has moved beyond."""
        if self._main._is_child:
            forked.refuse(f"rank {self.rank}")
        if (end, stream, other) in self._ends:
            raise UsageError(
                f"rank {self.rank}: the {end} of stream {stream!r} {other} was opened already: "
                "keep it and use it again, for a loop too"
            )
        self._ends.add((end, stream, other))

    def _bind(self, end: Sender | Receiver) -> None:
        """Bring an end that was made across a change of epoch into the epoch in force."""
        while True:
            try:
                end.rebind(self.ledger)
                return
            except LedgerClosed:
                self.advance()

    def restore(self) -> dict[str, Any] | None:
        """All effect keys of this rank that were committed, None if there are none yet."""
        entries = self.job.record.get("states", {}).get(str(self.rank), [])
        before = ledger_state.restore(self.config.ledger, entries) if entries else {}
        if (stages := self.stages) is not None:
            stages.end(Field.RESTORED)
        return {**before, **self._store.values()} or None

    # -- used by the stream ends ---------------------------------------------------------------

    def link(self, stream: str, source: int, dest: int) -> Link:
        """Name of a link, and the plane that carries it."""
        job = self.job
        return Link(job.directory, self.config.job, stream, source, dest, job.plane)

    def stream_state(self, stream: str, source: int, dest: int) -> StreamState:
        """Marks of one stream at one receiver, as the record of our epoch has them."""
        for entry in self.job.record.get("marks", []):
            if (entry["stream"], entry["source"], entry["dest"]) == (stream, source, dest):
                marks = Marks(entry["hwm"], [tuple(pair) for pair in entry["above"]])
                delivered = entry.get("delivered", 0)
                return StreamState(marks, delivered, max(delivered, marks.highest) + 1)
        return StreamState(Marks(), 0, 1)

    def keep_durable(self, spool: Spool | Digests) -> None:
        """Sync a spool along with the ledger, where the class asks for it."""
        if self._syncer is not None:
            self._syncer.add_spool(spool)

    def stable_upto(self, stream: str, dest: int, lost: Marks) -> int:
        """Highest number of our stream up to which ``dest`` has all, at the class of the job.

        Parameters
        ----------
        stream : str
        dest : int
        lost : Marks
            Numbers that will never come.
        """
        read = durably_consumed if self._syncer is not None else consumed_so_far
        marks = self.stream_state(stream, self.rank, dest).marks.copy()
        runs = read(self.config.ledger, self.epoch, dest).get((stream, self.rank, dest))
        if runs is not None:
            marks.merge(Marks.from_runs(runs[:, 0], runs[:, 1]))
        marks.merge(lost)
        return marks.hwm

    def stage(self, effects: dict, log, seq: int, count: int) -> None:
        """Write effect values where the next commit on ``log`` makes them count."""
        ref = log.next_ref(seq, count)
        self._store.begin(ref)
        download = self.job.arrays.download  # ends what a GPU still does to the value
        for key, value in effects.items():
            self._store.put(key, download(value), ref)

    def count(self, messages: int) -> int:
        """Count messages sent or consumed by this rank; the new total."""
        total = self.job.board.count_message(self.rank, messages)
        if self._syncer is not None:
            self._syncer.check()
        return total


class InheritedSeat(Seat):
    """The rank of a dead process that this one takes over beside its own.

    Its streams go on after the marks in the dead rank's ledger; :meth:`restore` gives the state
    that its effects left. What is consumed or sent here is recorded under its rank.
    """

    def __init__(self, main: Runtime, rank: int):
        self._sit(main, rank)
        self._injector = _NoFaults
        self.served = False

    @property
    def sources(self) -> list[tuple[str, int]]:
        """The (stream, source) pairs that the rank is known to consume."""
        marks = self.job.record.get("marks", [])
        return [(m["stream"], m["source"]) for m in marks if m["dest"] == self.rank]

    @property
    def unfinished(self) -> list[str]:
        """Streams of the rank, either way, of which not all is sent and consumed yet."""
        found = []
        for entry in self.job.record.get("marks", []):
            if self.rank in (entry["source"], entry["dest"]):
                marks = self.stream_state(entry["stream"], entry["source"], entry["dest"]).marks
                if entry["last"] == 0 or not marks.covers(entry["last"]):
                    found.append(f"{entry['stream']!r} {entry['source']} to {entry['dest']}")
        return found


class _NoFaults:
    """Faults of a rank are its own process's: an heir has those of its own rank only."""

    pending: tuple = ()
    active = False
