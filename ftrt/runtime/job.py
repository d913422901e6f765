"""A rank's view of its job: which epoch is in force, who is who in it, and how to wait.

Everything that may take time goes through :meth:`Job.wait`, the only loop of a rank: it looks at
the epoch, at the status of the attempt and at the deadline, and sleeps on the rank's bell.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt import atomics, mpi
from ftrt.errors import DeadlineExceeded, Fenced, RecoveryImpossible
from ftrt.host import libc
from ftrt.host.beat import Heartbeat
from ftrt.host.board import Board, Field, Phase, Status, Word, job_directory, wait_for_board
from ftrt.host.start import failure_before_the_board, start_agent
from ftrt.ledger.record import read_record
from ftrt.runtime.config import Config
from ftrt.runtime.events import reason_of_failure
from ftrt.runtime.members import Survivors
from ftrt.transport.arrays import HostArrays
from ftrt.transport.mpi_plane import MpiPlane

_SPINS = 40
# A GPU rings no bell either, and what it does takes microseconds.
_SPINS_NCCL = 400
_LONGEST_SLEEP_S = 0.05
# No bell rings for a message of MPI: whoever waits for one looks again after this time.
_SHORTEST_NAP_S, _LONGEST_NAP_S = 2e-5, 2e-4
_AGENT_SILENCE_S = 10.0
_LINGER_S = 0.01
_scratch = np.zeros(1, np.uint64)


class JobEnded(Exception):
    """The attempt is over and this process was not needed."""


class Job:
    """Registration, epochs and waiting of one process."""

    def __init__(self, config: Config):
        self.config = config
        self.directory = job_directory(config.job, config.attempt)
        agent = None
        if config.host and mpi.world_rank_of_environment() == config.own[0]:
            agent = start_agent(config, os.environ)  # that of the first host the launcher starts
        over_mpi = config.plane == "host" and (config.several or not config.shm)
        self.world = mpi.connect(config.processes, over_mpi, config.several)
        if self.world.rank == 0 and not config.launched:
            agent = start_agent(config, os.environ)
        self.process = self.world.rank
        self.board: Board = wait_for_board(
            self.directory / "board", config.init_timeout_s, lambda: _look_for(agent, config)
        )
        self._announce()
        self.survivors = Survivors(self.world, self.board)
        self.processes: dict[int, int] = {}
        self.inherited: dict[int, int] = {}
        self.plane = self._make_plane()
        self.arrays: Any = HostArrays if config.plane == "host" else self.plane.device
        self._spins = _SPINS if config.plane == "host" else _SPINS_NCCL
        self._register()
        self.epoch = 0
        self.rank = -1
        self.record: dict = {}
        self._agent_beat = (0, time.monotonic())
        self._agent_descriptor = _open_process(int(self.board.words[Word.AGENT_PID]))
        self._epoch_index = int(Word.EPOCH)
        self._bell = self.board.index(self.process, Field.BELL)
        self._sleeping = self.board.index(self.process, Field.SLEEPING)
        self._phase = self.board.index(self.process, Field.PHASE)
        self._progress = self.board.index(self.process, Field.PROGRESS)

    def _make_plane(self) -> Any:
        """What carries streams between processes, None where they share memory."""
        config = self.config
        if config.plane == "nccl":
            from ftrt.transport.nccl.plane import plane_of

            return plane_of(
                self.directory,
                self.process,
                self._process_of,
                ranks=config.ranks,
                spares=config.spares,
                gpus=config.gpus,
                standby=config.standby,
                path=config.nccl_path,
                transfer_timeout_s=config.transfer_timeout_s,
                alive=self._is_alive,
            )
        if self.world.wire is not None:
            self.world.wire.lives = self.board.lives
            return MpiPlane(self.world.wire, self._process_of)
        return None

    def _is_alive(self, process: int) -> bool:
        """Whether a process that has registered still runs."""
        pid, began = (self.board.get(process, f) for f in (Field.PID, Field.START_TICKS))
        return not (pid and began) or libc.is_running(pid, began)

    def _process_of(self, rank: int) -> int | None:
        return self.processes.get(rank)

    def close_plane(self) -> None:
        """End the communicators of this process, within seconds."""
        if self.config.plane == "nccl":
            self.plane.close()

    def _announce(self) -> None:
        """Say who this process is: if it dies from here on, the agent hears of it."""
        board, me = self.board, self.process
        board.own(me)
        board.put(me, Field.PID, os.getpid())
        board.put(me, Field.START_TICKS, libc.process_start_ticks(os.getpid()))
        board.put(me, Field.PHASE, Phase.STARTING)

    def _register(self) -> None:
        """Be ready for a rank."""
        board, me = self.board, self.process
        self._heart = Heartbeat(board.words, board.index(me, Field.BEAT))
        board.put(me, Field.PHASE, Phase.READY)

    # -- assignment and epochs -------------------------------------------------------------

    def await_assignment(self, get_ready: Callable[[int], None]) -> None:
        """Sleep until this process has a logical rank; :class:`JobEnded` if it never gets one.

        ``get_ready`` is called with a rank that this process may get in a moment.
        """
        words, field = self.board.words, self.board.index(self.process, Field.RANK_PLUS_1)
        candidate, known = self.board.index(self.process, Field.CANDIDATE), 0
        libc.ask_short_slice()
        cores = os.sched_getaffinity(0)
        while not words[field]:
            bell = int(words[self._bell])
            if words[candidate] != known:
                known = int(words[candidate])
                get_ready((known & 0xFFFFFFFF) - 1)
                self._linger(field, cores)
                if not words[field]:
                    libc.keep_to(0, cores)  # the agent had it wake on another core than its own
                continue
            if self.board.status in (Status.ENDED, Status.FAILED):
                raise JobEnded
            self._check_agent()
            self.survivors.catch_up_later()
            if not words[field]:
                self.board.sleep(self.process, bell, 0.25)
        self.rank = int(words[field]) - 1
        self.adopt()

    def _linger(self, field: int, cores: set[int]) -> None:
        """Stay awake for the rank that was announced: a process that slept is slow.

        Without yielding, where the agent has a core of its own: the dying process would be let
        free its memory first.
        """
        words, end = self.board.words, time.monotonic() + _LINGER_S
        while not words[field] and time.monotonic() < end:
            if len(cores) == 1:
                os.sched_yield()

    def adopt(self) -> None:
        """Take the epoch in force as ours; :class:`Fenced` if we are not in it."""
        epoch = self.board.epoch
        record = read_record(self.config.ledger, epoch)
        member = next((m for m in record["members"] if m["rank"] == self.rank), None)
        if member is None or member["process"] != self.process:
            raise Fenced(
                f"rank {self.rank} (process {self.process}) was replaced in epoch {epoch}: nothing "
                "that it does counts any more, and nothing is lost; this process ends"
            )
        self.record, self.epoch = record, epoch
        self.processes = {m["rank"]: m["process"] for m in record["members"]}
        self.inherited = dict(record.get("inherited", []))
        self.board.put(self.process, Field.SINCE_EPOCH, epoch)
        self.board.put(self.process, Field.PHASE, Phase.RUNNING)

    @property
    def own_ranks(self) -> list[int]:
        """The ranks that have a process of their own, sorted."""
        return sorted(self.processes.keys() - self.inherited.keys())

    @property
    def moved_on(self) -> bool:
        """True once a later epoch than ours is in force."""
        return int(self.board.words[self._epoch_index]) != self.epoch

    # -- waiting ---------------------------------------------------------------------------

    def wait(self, ready: Callable[[], object], what: str, timeout_s: float | None = None):
        """Return the first true value of ``ready()``.

        ``ready`` is called again whenever this rank's bell was rung. Raises
        :class:`DeadlineExceeded` after ``timeout_s`` (default: the configured call time-out).
        """
        for _ in range(self._spins):
            value = ready()
            if value:
                return value
        limit_s = self.config.call_timeout_s if timeout_s is None else timeout_s
        return self._sleep_until(ready, what, limit_s)

    def _sleep_until(self, ready, what: str, timeout_s: float):
        words, deadline = self.board.words, time.monotonic() + timeout_s
        nap_s = _SHORTEST_NAP_S if self.plane else _LONGEST_SLEEP_S
        words[self._phase] = Phase.WAITING
        try:
            while True:
                bell = int(words[self._bell])
                self.board.put(self.process, Field.SLEEPING, 1)
                _fence_both_ways()
                value = ready()
                if value:
                    return value
                self.check()
                if time.monotonic() > deadline:
                    usual = timeout_s == self.config.call_timeout_s
                    limit = f"{timeout_s:g} s{' (FTRT_CALL_TIMEOUT_S)' if usual else ''}"
                    raise DeadlineExceeded(
                        f"rank {self.rank}, epoch {self.epoch}: {what} did not happen within "
                        f"{limit}; nothing is lost, `ftrt run --resume` goes on from "
                        f"the ledger {self.config.ledger}"
                    )
                self.board.sleep(self.process, bell, nap_s)
                if self.plane:
                    nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        finally:
            words[self._sleeping] = 0
            words[self._phase] = Phase.RUNNING
            self.made_progress()

    def made_progress(self) -> None:
        """Tell the agent that this rank gets on."""
        self.board.words[self._progress] += 1

    def wake(self, rank: int) -> None:
        """Wake ``rank`` if it sleeps, after a store that it may be waiting for."""
        process = self.processes.get(rank)
        if process is not None and self.board.get(process, Field.SLEEPING):
            self.board.ring_bell(process)

    def check(self) -> None:
        """Raise if this attempt cannot go on."""
        status = self.board.status
        if status is Status.FAILED:
            reason = reason_of_failure(self.config.ledger / "run", self.config.attempt)
            raise RecoveryImpossible(
                f"rank {self.rank}, epoch {self.epoch}: {reason}; "
                "nothing that was committed is lost"
            )
        self._check_agent()

    def _check_agent(self) -> None:
        agent = self._agent_descriptor
        if agent is None or libc.process_ended(agent):
            raise RecoveryImpossible(
                f"rank {self.rank}, epoch {self.epoch}: the host agent (pid "
                f"{int(self.board.words[Word.AGENT_PID])}) is gone, its last words are in "
                "run/agent.log of the ledger; nothing that was committed is lost, "
                "`ftrt run --resume` goes on from the ledger"
            )
        beat, now = int(self.board.words[Word.AGENT_BEAT]), time.monotonic()
        if beat != self._agent_beat[0]:
            self._agent_beat = (beat, now)
        elif now - self._agent_beat[1] > _AGENT_SILENCE_S:
            raise RecoveryImpossible(
                f"rank {self.rank}: the host agent (pid {int(self.board.words[Word.AGENT_PID])}) "
                f"has been silent for {_AGENT_SILENCE_S:g} s; restart from the ledger"
            )

    # -- the end -----------------------------------------------------------------------------

    def is_finished(self, rank: int) -> bool:
        """Whether ``rank`` is done for good: it is not replaced any more, even if it dies."""
        return self.board.get(self.processes[rank], Field.PHASE) == Phase.FINISHED

    def finish(self, serve: Callable[[], object], settled: Callable[[], bool]) -> None:
        """Say that this rank is done and stay until all are, calling ``serve`` meanwhile.

        While it is not ``settled`` it is still needed, and replaced if it dies.
        """
        index = self._phase

        def ended():
            serve()
            self.board.words[index] = Phase.FINISHED if settled() else Phase.LEAVING
            return self.board.status is Status.ENDED

        nap_s = _LONGEST_NAP_S if self.plane else _LONGEST_SLEEP_S
        while not ended():
            self.check()
            bell = int(self.board.words[self._bell])
            self.board.put(self.process, Field.SLEEPING, 1)
            if not ended():
                self.board.sleep(self.process, bell, nap_s)

    def leave_at_exit(self) -> None:
        """End with the program's own status, without ``MPI_Finalize``, once Python is through."""
        if not self.config.ulfm:  # whoever leaves without it is taken for dead, and all are ended
            atexit.register(self._heart.stop)
            atexit.register(self.world.finalize)
        elif libc.leave_after_python():
            atexit.register(self._heart.stop)  # its memory goes away with the interpreter
        else:
            atexit.register(mpi.leave, 0)


def _open_process(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _fence_both_ways() -> None:
    atomics.add(_scratch, 0, 1)  # a locked read-modify-write is a full fence


def _look_for(agent: subprocess.Popen | None, config: Config) -> None:
    """Raise if the agent failed before it had a board to say so."""
    reason = failure_before_the_board(agent, config)
    if reason is not None:
        raise RecoveryImpossible(reason)
