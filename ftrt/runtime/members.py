"""The application's communicator: made anew in each epoch, and revoked when its epoch ends.

After a death MPI makes a communicator only from one without dead members. ``MPI_Comm_shrink`` of
the world gives that, and takes all living processes, idle spares too. They go through it in
*rounds*, which the board counts, so that the calls of all match, whoever missed an epoch.

Nobody begins to make a communicator before all members have asked for it: a call of MPI that some
of them never join cannot be ended, and Open MPI crashes in it once one of them dies.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from ftrt import atomics, mpi
from ftrt.errors import DeadlineExceeded, FtrtError, PeerFailed
from ftrt.host.board import Board, Field, Status, Word
from ftrt.ledger.record import read_record
from ftrt.mpi import World
from ftrt.runtime.events import EventLog

_MADE_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.005
_EPOCH_BITS = 32
_EPOCH_MASK = (1 << _EPOCH_BITS) - 1


class Survivors:
    """The living processes of the world, as of the last round of shrinking."""

    def __init__(self, world: World, board: Board):
        self._world, self._board = world, board
        self._done = 0
        self._comm: Any = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, epoch: int) -> None:
        """Ask everybody for a round in ``epoch``, unless somebody has."""
        words, at = self._board.words, int(Word.SHRINK)
        while (word := atomics.load(words, at)) & _EPOCH_MASK < epoch:
            atomics.swap_if(words, at, word, ((word >> _EPOCH_BITS) + 1) << _EPOCH_BITS | epoch)
        self._board.ring_all()

    @property
    def behind(self) -> bool:
        """Whether there is a round that this process has not gone through."""
        return self._done < atomics.load(self._board.words, int(Word.SHRINK)) >> _EPOCH_BITS

    def catch_up(self) -> Any:
        """Go through all rounds; the communicator of the last one."""
        with self._lock:
            while self.behind:
                self._comm = self._world.shrink()
                self._done += 1
            return self._comm

    def catch_up_later(self) -> None:
        """:meth:`catch_up` in a thread: a process that is about to be promoted cannot wait."""
        if self.behind and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self.catch_up, name="ftrt-shrink", daemon=True)
            self._thread.start()


class MemberComm:
    """The communicator of the members in logical order, one for each epoch.

    Parameters
    ----------
    job : ftrt.runtime.job.Job
    """

    def __init__(self, job: Any):
        self._job = job
        self._made: tuple[int, Any] | None = None
        self._derived: list[Any] = []

    def get(self) -> Any:
        """That of the epoch that the job is in; collective over its members at first use.

        Raises
        ------
        PeerFailed
            The epoch ended while it was made.
        DeadlineExceeded
            Not all members asked for it in time.
        """
        job = self._job
        if self._made is None or self._made[0] != job.epoch:
            order = [job.processes[rank] for rank in sorted(job.own_ranks)]
            self._ask(job.epoch, order)
            comm = self._make(job.epoch, order)
            self._made, self._derived = (job.epoch, comm), []
            self._in_thread(functools.partial(self._guard, job.epoch, comm, self._derived))
        return self._made[1]

    def guarded(self, comm: Any) -> Any:
        """Have ``comm`` revoked with that of the epoch; collective over the members."""
        self.get().Barrier()  # whoever comes out knows that all members have it
        self._derived.append(comm)
        return comm

    def _ask(self, epoch: int, members: list[int]) -> None:
        """Return once all members have asked for it, and so are going to make it."""
        job = self._job
        job.board.put(job.process, Field.COMM, epoch)
        job.board.ring_all()
        what = f"the communicator of epoch {epoch} (all ranks have to call rt.comm)"
        try:
            job.wait(lambda: self._decision(epoch, members) is not None, what, _MADE_WITHIN_S)
        except DeadlineExceeded:
            if not self._decision(epoch, members, give_up=True):
                raise
        if self._decision(epoch, members):
            return
        if not job.moved_on:
            raise DeadlineExceeded(
                f"rank {job.rank}: {what} was given up, because not all had asked for it within "
                f"{_MADE_WITHIN_S:g} s; nothing is lost, rt.revoke() begins an epoch that may have "
                "one"
            )
        raise self._too_late(epoch)

    def _decision(self, epoch: int, members: list[int], give_up: bool = False) -> bool | None:
        """Whether the communicator of an epoch is made; None until that is known.

        The same for all members, whatever each of them saw first: that all had asked for it, or
        that the epoch was over. Among several hosts no word is shared, and each goes by what it
        saw itself.
        """
        job, words, at = self._job, self._job.board.words, int(Word.COMM)
        while True:
            word = int(atomics.load(words, at))
            made, known = word >> _EPOCH_BITS, word & _EPOCH_MASK
            if known >= epoch:
                return made == epoch
            if all(job.board.get(process, Field.COMM) == epoch for process in members):
                made = epoch
            elif not (give_up or job.moved_on):
                return None
            if int(atomics.swap_if(words, at, word, made << _EPOCH_BITS | epoch)) == word:
                job.board.ring_all()

    def _too_late(self, epoch: int, why: str = "") -> PeerFailed:
        return PeerFailed(
            f"rank {self._job.rank}: epoch {epoch} ended while its communicator was made{why}: "
            "call rt.comm again"
        )

    def _make(self, epoch: int, order: list[int]) -> Any:
        """Make it in a thread: no call of MPI ends by itself if somebody dies in it."""
        job, found = self._job, []

        def work() -> None:
            try:
                survivors = None
                if self._somebody_died():
                    job.survivors.ask(epoch)
                    survivors = job.survivors.catch_up()
                found.append(job.world.member_comm(order, epoch, survivors))
            except Exception as error:  # MPI's, of whatever class: told by the waiting thread
                found.append(error)
            job.board.ring_bell(job.process)

        self._in_thread(work)
        what = f"the communicator of epoch {epoch}, which all ranks have asked for,"
        job.wait(lambda: found or job.moved_on, what, _MADE_WITHIN_S)
        if not found or isinstance(found[0], Exception):
            raise self._too_late(epoch, f" ({found[0]})" if found else "")
        return found[0]

    def _somebody_died(self) -> bool:
        """Whether an epoch of this attempt ended before; its processes are a world of their own."""
        config, record = self._job.config, self._job.record
        if not record["parent"]:
            return False
        return read_record(config.ledger, record["parent"])["attempt"] == config.attempt

    def _guard(self, epoch: int, comm: Any, derived: list[Any]) -> None:
        """Revoke it once its epoch is over or the attempt has failed: all calls on it end then.

        By now all members have it, so that it may be revoked; with it those derived from it.
        """
        job = self._job
        with contextlib.suppress(FtrtError):
            while job.board.epoch == epoch and job.board.status is not Status.ENDED:
                job.check()
                time.sleep(_LOOK_EVERY_S)
        if job.board.status is not Status.ENDED:
            for one in (comm, *derived):
                job.world.revoke(one)
            self._end_if_stuck(epoch, [comm, *derived])

    def _end_if_stuck(self, epoch: int, comms: list[Any]) -> None:
        """Die if a call on a revoked communicator does not return: a spare can take over then."""
        limit_s, since_s, waited_s = self._job.config.evict_timeout_s, time.monotonic(), 0.0
        while name := mpi.call_under_way(comms, since_s):
            if waited_s > limit_s:
                EventLog(self._job.config.ledger / "run", self._job.config.attempt).write(
                    "stuck",
                    rank=self._job.rank,
                    reason=f"{name} on the communicator of epoch {epoch} has not returned for "
                    f"{limit_s:g} s after it was revoked: its process ends; nothing is lost",
                )
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)
            waited_s += _LOOK_EVERY_S  # not by the clock: all of us may have been stopped

    @staticmethod
    def _in_thread(work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="ftrt-comm", daemon=True).start()
