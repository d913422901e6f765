"""What ``ftrt.init()`` returns: a rank's streams, state and membership."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from ftrt import mpi
from ftrt.agree.marks import Marks
from ftrt.errors import (
    DeadlineExceeded,
    Fenced,
    LedgerError,
    PeerFailed,
    RecoveryImpossible,
    UsageError,
)
from ftrt.host import libc
from ftrt.host.board import Field, Phase, Word
from ftrt.ledger import state as ledger_state
from ftrt.ledger.log import Ledger, LedgerClosed
from ftrt.ledger.pool import LedgerPool
from ftrt.ledger.seal import consumed_so_far, durably_consumed
from ftrt.ledger.spool import Spool
from ftrt.ledger.sync import Syncer
from ftrt.runtime import arguments, direct, ending, forked
from ftrt.runtime.config import Config, environment_config
from ftrt.runtime.digests import Digests
from ftrt.runtime.events import EventLog
from ftrt.runtime.faults import Injector
from ftrt.runtime.job import Job, JobEnded
from ftrt.runtime.members import MemberComm
from ftrt.runtime.receiver import Receiver
from ftrt.runtime.rehearse import Rehearsal
from ftrt.runtime.sender import SLOT_BYTES, SLOTS, Sender
from ftrt.transport.factory import Link

_NEXT_EPOCH_S = 60.0
#: Failures that another attempt may not have, unlike one of the program itself.
_NOT_THE_PROGRAMS = (Fenced, RecoveryImpossible, DeadlineExceeded, PeerFailed, LedgerError)


class Role(enum.Enum):
    """How this process came to its rank."""

    INITIAL = "initial"
    SURVIVOR = "survivor"
    RECOVERED = "recovered"
    SPARE = "spare"


@dataclasses.dataclass(frozen=True)
class StreamState:
    """What the record of an epoch says of one stream at one receiver."""

    marks: Marks
    delivered: int
    next_seq: int


class Runtime:
    """One rank of a job. Made by :func:`init`, used as a context manager.

    Attributes
    ----------
    rank, size : int
        Logical rank and number of ranks; they do not change when processes are replaced.
    epoch : int
        Counter of the membership in force for this rank.
    role : Role
        How this process came to its rank.
    """

    def __init__(self, config: Config):
        self.config = config
        self.job = Job(config)
        self.events = EventLog(config.ledger / "run", config.attempt)
        self._enlist()
        self._await_assignment()
        self.rank, self.size = self.job.rank, config.ranks
        self._senders: list[Sender] = []
        self._ends: set[tuple[str, str, str]] = set()
        self._receivers: list[Receiver] = []
        self._fail_over_at_s = 0.0
        self._recovery_hooks: list[Callable[[Runtime], None]] = []
        self._depleted_hooks: list[Callable[[Runtime], None]] = []
        self._members = MemberComm(self.job, self.size)
        self._pool = LedgerPool(config.ledger)
        self._syncer: Syncer | None = None
        if config.durable:
            self._syncer = Syncer(config.ledger, self.rank, config.sync_interval_s)
        while not self._enter_epoch():
            self._await_epoch_after(self.epoch)
        self.since_epoch = next(
            m["since"] for m in self.job.record["members"] if m["rank"] == self.rank
        )
        first = config.attempt == 1 and self.since_epoch == 1
        self.role = Role.INITIAL if first else Role.RECOVERED
        self._injector = Injector(self.job, self.rank, self.note, self._can_inflict)
        self._is_child = False
        os.register_at_fork(after_in_child=self._disown)

    def _await_assignment(self) -> None:
        """Become a rank; a process that is not wanted as one ends here."""
        job, config = self.job, self.config
        rehearsal: Rehearsal | None = None
        if job.process >= config.ranks:
            rehearsal = Rehearsal(job.directory, config.ledger, job.process)
            rehearsal()
            gc.freeze()  # a collection amid a take-over need not go through all that was loaded

        def get_ready(rank: int) -> None:
            if rehearsal is not None:
                rehearsal(job.board.epoch, rank)

        try:
            job.await_assignment(get_ready)
        except JobEnded:
            mpi.leave(0)

    def _enlist(self) -> None:
        """Leave our process id where the launcher finds left-overs, the start time with it."""
        start = libc.process_start_ticks(os.getpid())
        with open(self.config.pids, "a") as pids:
            pids.write(f"{os.getpid()} {start}\n")

    def _enter_epoch(self) -> bool:
        """Go on in our ledger of the epoch we are in; False if that epoch has ended already."""
        try:
            self._open_ledger()
            ends: list[Sender | Receiver] = [*self._senders, *self._receivers]
            for end in ends:
                end.rebind(self.ledger)
        except LedgerClosed:
            return False
        return True

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
            self._pool,
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

    @property
    def epoch(self) -> int:
        """Counter of the epoch this rank is in."""
        return self.job.epoch

    @property
    def comm(self):
        """mpi4py communicator of the members in logical order; collective at first use.

        When its epoch ends it is revoked: every call on it returns or raises an MPI exception at
        all members. Ask for ``rt.comm`` again then; it is that of the next epoch, and what was
        done on the old one may be complete at some members only.

        Raises
        ------
        PeerFailed
            Somebody died while it was made; ask again.
        DeadlineExceeded
            Some member did not ask for it.
        """
        if self.job.moved_on:
            self.advance()
        return self._members.get()

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
        self._senders.append(made)
        self._bind(made)
        made.resend_missing()
        return made

    def receiver(self, stream: str, source: int) -> Receiver:
        """Open the receiving end of ``(stream, source)`` at this rank."""
        arguments.stream_name(stream)
        source = arguments.source_rank(stream, source, self.rank, self.size)
        self._open_once("receiver", stream, f"from rank {source}")
        if self._syncer is not None:
            self._syncer.add_source(stream, source)
        made = Receiver(self, stream, source)
        self._receivers.append(made)
        self._bind(made)
        return made

    def _open_once(self, end: str, stream: str, other: str) -> None:
        """A second end would begin at numbers that the first has moved beyond."""
        if self._is_child:
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
        return {**before, **self._store.values()} or None

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float) -> Iterator[None]:
        """Declare work that makes no call into ftrt for long, such as a compilation.

        Parameters
        ----------
        name : str
            What is done; it is told if the rank has to be replaced in it.
        limit_s : float
            Seconds without progress after which this rank counts as hanging; holds until the
            block is left, in place of ``--stall-timeout-s``.
        """
        if not 0 < limit_s < float("inf"):
            raise UsageError(f"phase {name!r}: limit_s={limit_s}: a finite number above 0")
        job = self.job
        self.note("phase", name=name, limit_s=limit_s)
        before = job.board.get(job.process, Field.STALL_LIMIT_MS)
        job.board.put(job.process, Field.STALL_LIMIT_MS, max(1, int(limit_s * 1e3)))
        job.made_progress()
        try:
            yield
        finally:
            job.made_progress()
            job.board.put(job.process, Field.STALL_LIMIT_MS, before)

    @property
    def spares_left(self) -> int:
        """How many spares wait for a rank; known to every rank before the next death."""
        return int(self.job.board.words[Word.SPARES])

    def on_depleted(self, hook: Callable[[Runtime], None]) -> None:
        """Call ``hook(rt)`` once no spare is left, at this rank's next wait or change of epoch.

        At once where there is none already. What the next death does is then up to the options
        ``--min-ranks`` and ``--restarts``.
        """
        self._depleted_hooks.append(hook)
        self._tell_depleted()

    def _tell_depleted(self) -> None:
        if self._depleted_hooks and not self.spares_left:
            hooks, self._depleted_hooks = self._depleted_hooks, []
            for hook in hooks:
                hook(self)

    def on_recovery(self, hook: Callable[[Runtime], None]) -> None:
        """Call ``hook(rt)`` after this rank moved to a new epoch as a survivor."""
        self._recovery_hooks.append(hook)

    def revoke(self, reason: str) -> None:
        """End the epoch for every rank, as ``MPI_Comm_revoke`` ends a communicator.

        Nobody is replaced: the same members go on in the next epoch, with marks that all agree on,
        and :attr:`comm` is a new one. Returns once this rank is in that epoch. For a program that
        sees its peers get nowhere though nobody died.

        Parameters
        ----------
        reason : str
            Goes into the events of the job.
        """
        epoch = self.epoch
        self.note("revoked", reason=reason)
        self.job.board.set_header(Word.REVOKED, epoch)
        self.wait(lambda: self.epoch != epoch, f"the end of epoch {epoch}, which was revoked")

    def to_plane(self, array: np.ndarray) -> Any:
        """A host array where the plane moves arrays: on this rank's GPU, or as it is.

        With :meth:`to_host` one program runs on every plane.
        """
        return self.job.arrays.upload(array)

    def to_host(self, array: Any) -> np.ndarray:
        """An array of the plane on the host; what is queued for it on the GPU has ended then."""
        return self.job.arrays.download(array)

    def progress(self, done: int, total: int) -> None:
        """Tell whoever watches the job that this rank has done ``done`` of ``total`` steps.

        The progress bar shows the sums over the ranks that tell; it costs two stores.
        """
        self.job.board.tell_progress(self.rank, done, total)

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

    @property
    def stable_is_later(self) -> bool:
        """Whether the class of the job asks for more than a commit in memory."""
        return self._syncer is not None

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

    def count(self, messages: int) -> None:
        """Count messages sent or consumed; inject what is due."""
        total = self.job.board.count_message(self.rank, messages)
        if self._syncer is not None:
            self._syncer.check()
        if self._injector.active:
            for fault in self._injector.reached(total):
                self._carry_out(fault)

    def _strike(self) -> None:
        """Inject what the agent asks for."""
        if self._injector.active:
            for fault in self._injector.asked():
                self._carry_out(fault)

    def _can_inflict(self, kind: str) -> bool:
        """Whether there is something for a fault to hit yet; else it waits."""
        ends: dict[str, list] = {"corrupt": self._receivers, "abort": self._senders}
        return bool(ends.get(kind, True))

    def _carry_out(self, fault: dict) -> None:
        if fault["kind"] == "corrupt":
            for receiver in self._receivers:
                receiver.corrupt_next()
        elif fault["kind"] == "abort":
            for sender in self._senders:
                sender.abort()
        elif fault["kind"] == "gpu":
            self.job.plane.device.lose()
        elif fault["kind"] == "eio" and self._syncer is not None:
            self._syncer.fail_next()

    def note(self, event: str, **fields) -> None:
        """Write an event of this rank."""
        fields.setdefault("rank", self.rank)
        self.events.write(event, process=self.job.process, epoch=self.epoch, **fields)

    def wait(self, ready: Callable[[], object], what: str, timeout_s: float | None = None):
        """Wait as :meth:`Job.wait` does, healing damaged slots of our streams meanwhile."""

        def serving():
            value = ready()
            if not value:
                self._serve()
                value = ready()
            return value

        return self.job.wait(serving, what, timeout_s)

    def _serve(self) -> None:
        if self._syncer is not None:
            self._syncer.check()
        self._strike()
        for sender in self._senders:
            if sender.nacked():
                sender.heal()
            sender.free_kept()
            sender.pump()
        if self.job.plane:
            for receiver in self._receivers:
                receiver.serve()
            if self.config.plane == "nccl":
                self._fail_over()
        if self._depleted_hooks:
            self._tell_depleted()
        if self.job.moved_on:
            self.advance()

    def _fail_over(self) -> None:
        """Look after the channels between GPUs, a thousand times a second."""
        now_s = time.monotonic()
        if now_s < self._fail_over_at_s:
            return
        self._fail_over_at_s = now_s + 0.001
        for sender in self._senders:
            sender.fail_over()

    def synchronize(self, stream: Any, timeout_s: float | None = None) -> None:
        """Wait until a CUDA stream of the application has done its work, without blocking in CUDA.

        Parameters
        ----------
        stream
            A stream of CuPy, of torch, or any with ``query()`` or ``done``.
        timeout_s : float, optional
            By default the configured call time-out.

        Raises
        ------
        PeerFailed
            The epoch ended meanwhile: what the stream waits for may never come.
        DeadlineExceeded
            The time was not enough.
        """
        epoch = self.epoch

        def idle() -> bool:
            if self.epoch != epoch:
                raise PeerFailed(
                    f"rank {self.rank}: epoch {epoch} ended while a stream was waited for; what it "
                    "does may wait for a rank that died: make its communicator anew"
                )
            query = getattr(stream, "query", None)
            return bool(query() if query is not None else stream.done)

        self.wait(idle, "the end of a CUDA stream's work", timeout_s)

    def advance(self) -> None:
        """Move to the epoch in force: our ledger of the old one is closed."""
        self._strike()
        self._await_epoch_after(self.epoch)
        while not self._enter_epoch():
            self._await_epoch_after(self.epoch)
        self.role = Role.SURVIVOR
        for hook in self._recovery_hooks:
            hook(self)
        self._tell_depleted()

    def _await_epoch_after(self, old: int) -> None:
        deadline = time.monotonic() + _NEXT_EPOCH_S
        while not self.job.moved_on:
            self.job.check()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"rank {self.rank}: the ledger of epoch {old} was closed, but no next epoch "
                    f"came within {_NEXT_EPOCH_S:g} s; nothing is lost, restart from the ledger"
                )
            time.sleep(0.0002)
        self.job.adopt()

    # -- the end -----------------------------------------------------------------------------

    def __enter__(self) -> Runtime:
        return self

    def _disown(self) -> None:
        """In a forked child: whatever it does and however it ends says nothing of the rank."""
        self._is_child = True
        ends: list[Sender | Receiver] = [*self._senders, *self._receivers]
        for end in ends:
            end.disown()
        libc.leave_after_python()

    def __exit__(self, kind, error, trace) -> None:
        if self._is_child:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            try:
                self._finish()
                return
            except BaseException as failure:  # the program's, too: its replay, its hooks
                error = failure
        if self.config.plane == "nccl" and self.job.plane.device.is_lost():
            self._leave_a_lost_gpu(error)
        if isinstance(error, _NOT_THE_PROGRAMS):
            ending.give_up(self.config, self.rank, error)
        self.job.board.put(self.job.process, Field.PHASE, Phase.RAISED)
        ending.raised(self.config, self.rank, error)

    def _leave_a_lost_gpu(self, error: BaseException) -> NoReturn:
        """Die: no call of this process reaches a GPU any more, and a spare can take over."""
        self.note("gpu lost", reason=f"{type(error).__name__}: {error}")
        os.kill(os.getpid(), signal.SIGKILL)
        raise error  # not reached

    def _finish(self) -> None:
        for sender in self._senders:
            sender.close()
        self.job.finish(self._serve, lambda: all(sender.settled for sender in self._senders))
        if self._syncer is not None:
            self._syncer.stop()
        self.job.close_plane()
        ending.report(self.config, self.rank, "done")
        ending.watch_what_follows(self.config, self.rank)
        self.job.leave_at_exit()


def init() -> Runtime:
    """Join the job that ``ftrt run`` started, or plain ``mpirun --with-ft ulfm``.

    A spare stays inside until it is needed, then returns with the rank of the process that it
    replaces; if it is never needed, it ends here.

    Returns
    -------
    Runtime
        A context manager; leaving it says that this rank's work is complete.

    Raises
    ------
    UsageError
        Neither ``ftrt run`` nor ``mpirun --with-ft ulfm`` started this process.
    """
    libc.end_with_mpirun()
    direct.prepare()
    direct.tell_host()
    config = environment_config()
    try:
        return Runtime(config)
    except _NOT_THE_PROGRAMS as failure:
        ending.give_up(config, None, failure)
