"""What ``ftrt.init()`` returns: a rank's streams, state and membership."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from ftrt import mpi
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
from ftrt.host.timing import Stages
from ftrt.ledger.log import LedgerClosed
from ftrt.ledger.pool import LedgerPool
from ftrt.runtime import direct, ending
from ftrt.runtime.config import Config, environment_config
from ftrt.runtime.events import EventLog
from ftrt.runtime.faults import Injector
from ftrt.runtime.inherit import Inbox, Inheritance, Sources
from ftrt.runtime.job import Job, JobEnded
from ftrt.runtime.members import MemberComm
from ftrt.runtime.receiver import Receiver
from ftrt.runtime.rehearse import Rehearsal
from ftrt.runtime.seat import Seat
from ftrt.runtime.sender import Sender

_NEXT_EPOCH_S = 60.0
#: Failures that another attempt may not have, unlike one of the program itself.
_NOT_THE_PROGRAMS = (Fenced, RecoveryImpossible, DeadlineExceeded, PeerFailed, LedgerError)


class Role(enum.Enum):
    """How this process came to its rank."""

    INITIAL = "initial"
    SURVIVOR = "survivor"
    RECOVERED = "recovered"
    SPARE = "spare"


class Runtime(Seat):
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
        self.config: Config = config
        self.job = Job(config)
        self.events = EventLog(config.ledger / "run", config.attempt)
        self._enlist()
        self._await_assignment()
        self._sit(self, self.job.rank)
        self._senders: list[Sender] = []
        self._receivers: list[Receiver] = []
        self._fail_over_at_s = 0.0
        self._stages: Stages | None = None
        self._recovery_hooks: list[Callable[[Runtime], None]] = []
        self._depleted_hooks: list[Callable[[Runtime], None]] = []
        self._members = MemberComm(self.job)
        self._pool = LedgerPool(config.ledger)
        self.heirs = Inheritance(self)
        while not self._enter_epoch():
            self._await_epoch_after(self.epoch)
        first = config.attempt == 1 and self.since_epoch == 1
        self.role = Role.INITIAL if first else Role.RECOVERED
        self._stages = None if first else Stages(self.job.board, self.job.process)
        self._injector = Injector(self.job, self.rank, self.note, self._can_inflict)
        self._is_child = False
        os.register_at_fork(after_in_child=self._disown)
        if self._stages is not None:
            self._stages.end(Field.REBUILT)

    def _await_assignment(self) -> None:
        """Become a rank; a process that is not wanted as one ends here."""
        job, config = self.job, self.config
        rehearsal: Rehearsal | None = None
        if job.process >= config.ranks:
            rehearsal = Rehearsal(job.directory, config.ledger, job.process)
            rehearsal()
            gc.freeze()  # a collection amid a take-over need not go through all that was loaded

        wanted = functools.partial(job.board.get, job.process, Field.RANK_PLUS_1)

        def get_ready(rank: int) -> None:
            if rehearsal is not None:
                rehearsal(job.board.epoch, rank, wanted)

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
            self.heirs.enter_epoch()
            ends: list[Sender | Receiver] = [*self._senders, *self._receivers]
            for end in ends:
                end.rebind(end.seat.ledger)
        except LedgerClosed:
            return False
        return True

    @property
    def comm(self):
        """mpi4py communicator of the members in logical order; collective at first use.

        A process that inherited ranks is in it once, at the place of its own rank.

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

    def guarded(self, comm: Any) -> Any:
        """Have a communicator that was derived from :attr:`comm` end with it; returns it.

        MPI tells of a death only those who talk to the dead: on a communicator of yours the others
        would wait for ever. Collective over the members of :attr:`comm`, in the epoch that it was
        made in: ``pairs = rt.guarded(rt.comm.Split(rt.rank // 2))``.

        Raises
        ------
        mpi4py.MPI.Exception
            The epoch ended meanwhile: make it anew from the next :attr:`comm`.
        PeerFailed, DeadlineExceeded
            As :attr:`comm` does.
        """
        return self._members.guarded(comm)

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

    @property
    def acting_for(self) -> list[Seat]:
        """The ranks that this process acts for: its own, then those that it inherited."""
        return self.heirs.all_seats

    def seats(self) -> Iterator[Seat]:
        """This rank, then each rank that it inherits, until nobody has work left.

        For programs whose ranks do one thing after the other, such as senders. Whoever asks for
        seats takes over ranks that die when no spare is left, if ``--min-ranks`` allows it.
        """
        return self.heirs.seats()

    def inbox(self, stream: str, sources: Sources) -> Inbox:
        """All messages of a stream that this rank and those that it inherits consume.

        Iterate over it: messages come in the order of each source, whichever of them has one;
        ``message.seat`` says whose they are. It ends once nobody has work left, so that an heir is
        there for as long as one may be needed. Whoever opens an inbox takes over ranks that die
        when no spare is left, if ``--min-ranks`` allows it.

        Parameters
        ----------
        stream : str
        sources : iterable of int, or callable
            Ranks that send it; or, called with a rank, those that send it to that rank.
        """
        return Inbox(self, stream, sources)

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

    def count(self, messages: int) -> int:
        """Count messages sent or consumed; inject what is due."""
        total = super().count(messages)
        if self._injector.active:
            for fault in self._injector.reached(total):
                self._carry_out(fault)
        return total

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
        for seat in self.heirs.all_seats:
            if seat._syncer is not None:
                seat._syncer.check()
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
        self.heirs.withdraw()
        self.job.finish(self._serve, lambda: all(sender.settled for sender in self._senders))
        for seat in self.heirs.all_seats:
            if seat._syncer is not None:
                seat._syncer.stop()
        self.job.close_plane()
        for seat in self.heirs.all_seats:
            ending.report(self.config, seat.rank, "done")
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
