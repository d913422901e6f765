"""The agent of a host: detects deaths, closes ledgers, creates epochs, promotes spares.

It is a process of its own, so that neither the GIL of a rank nor what a rank is busy with delays a
recovery. What it decides comes from :class:`ftrt.agree.recovery.Recovery`; this module turns what
happens into that core's events and carries out its effects, in the order in which they come.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import deque

from ftrt import atomics
from ftrt.agree import effects as fx
from ftrt.agree import events as ev
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.heirs import Heirs, candidates
from ftrt.agree.marks import StreamMarks
from ftrt.agree.recovery import Recovery
from ftrt.errors import FtrtError, LedgerError
from ftrt.host import evidence, libc
from ftrt.host.board import Board, Field, Phase, Status, Word, job_directory
from ftrt.host.farewell import Farewell
from ftrt.host.health import Health
from ftrt.host.inject import Schedule
from ftrt.host.policy import Policy
from ftrt.host.shm import hold
from ftrt.host.timing import Timekeeper, death_ns
from ftrt.host.watch import Watch
from ftrt.host.words import Heir, mpi_directory
from ftrt.ledger.leftovers import remove_leftovers
from ftrt.ledger.record import Draft, create_record, latest_epoch, read_record
from ftrt.runtime.config import Config, environment_config
from ftrt.runtime.events import EventLog
from ftrt.transport.nccl.placement import gpu_of

_TICK_MS = 5
_GRACE_S = 5.0
#: After a recovery the processes that it woke need the cores more than the next epoch's files do.
_SETTLE_S = 0.05
_REFRESH_S = 0.05
#: So much later than those who take over survivors are woken that sleep: they need the same cores.
_HEAD_START_S = 0.003


class LauncherGone(FtrtError):
    """Nobody is left who follows the attempt: it ends at once."""


def places_of(config: Config) -> list[int]:
    """The GPU of each process where that decides who can replace whom, else nothing."""
    if config.plane != "nccl":
        return []
    return [gpu_of(process, config.ranks, config.gpus) for process in range(config.processes)]


class Agent:
    """One attempt of one job on this host."""

    def __init__(self, config: Config):
        self.config = config
        self.directory = job_directory(config.job, config.attempt)
        self.directory.mkdir(mode=0o700)
        self._held = hold(self.directory)  # says that it is in use
        self.events = EventLog(config.ledger / "run", config.attempt)
        self.ledgers = evidence.Ledgers(config)
        self.rings = evidence.Rings(self.directory)
        self.record: dict = {}
        self._seals: dict[int, list[dict]] = {}
        self._delivered: dict[tuple[str, int, int], int] = {}
        self._events: deque[ev.Event] = deque()
        self._draft = Draft(config.ledger)
        # What a rank reads through shared memory lies there, whether its sender wakes or not.
        self._through_memory = config.plane == "host" and config.shm and not config.several
        self._survivors_wait, self._wake_at = False, 0.0
        self._roused: tuple[int, set[int]] | None = None
        self._unsettled: EpochId | None = None
        self._settle_at = self._refresh_at = 0.0
        self.over = False
        self._grace_s = _GRACE_S
        self._launcher: int | None = None
        self._told = 0
        self._inherited: tuple[tuple[int, int], ...] = ()
        self._policy: Policy | None = None

    # -- start -------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the board, wait for all processes, enter the first epoch of this attempt."""
        config = self.config
        self._launcher = self._open_launcher()
        if config.least and config.heirs:
            self._policy = Policy(config.heirs)  # before it is needed: it may import much
        last = latest_epoch(config.ledger)
        self._clear_the_way(last or 0)
        self.board = Board.create(
            self.directory / "board", config.processes, config.ranks, os.getpid()
        )
        with open(config.pids, "a") as pids:
            pids.write(f"{os.getpid()} {libc.process_start_ticks(os.getpid())}\n")
        self._await_registration()
        self.watch = Watch(self.board, config.own)
        self.health = Health(config, self.board, self.watch, self.events, self._ranks_of)
        self.schedule = Schedule(config, self)
        self.times = Timekeeper(self.events, self.board)
        self._enter(last, Membership.initial(config.ranks, config.spares, places_of(config)))

    def _enter(self, last: int | None, members: Membership) -> None:
        """Make the first epoch of this attempt."""
        if last is None:
            self._first_epoch(members)
        else:
            self._go_on(read_record(self.config.ledger, last), members)

    def _clear_the_way(self, last: int) -> None:
        """Remove what never counted, and be ready for the epoch that follows ``last``."""
        self.ledgers.discard_after(last)
        self.ledgers.prepare(last + 1)

    def _open_launcher(self) -> int | None:
        """A pidfd of the launcher, None where there is none to outlive."""
        pid = self.config.launcher_pid
        try:
            return None if pid is None else os.pidfd_open(pid)
        except ProcessLookupError:
            raise LauncherGone(f"the launcher (pid {pid}) is gone") from None

    def told_to_end(self, signum: int, frame: object) -> None:
        """Remember a signal: what is begun, a recovery too, is brought to its end first."""
        self._told = signum

    def _check_launcher(self) -> None:
        if self._told:
            raise FtrtError(
                f"the host agent was told to end by {signal.Signals(self._told).name}; "
                "`ftrt run --resume` goes on from the ledger"
            )
        if self._launcher is not None and select.select([self._launcher], [], [], 0)[0]:
            raise LauncherGone(f"the launcher (pid {self.config.launcher_pid}) is gone")

    def _await_registration(self) -> None:
        deadline = time.monotonic() + self.config.init_timeout_s
        waiting = set(self.config.own)
        while waiting:
            waiting = {p for p in waiting if not self._has_come(p)}
            self._beat()
            self._check_launcher()
            if time.monotonic() > deadline:
                raise FtrtError(
                    f"processes {sorted(waiting)} did not call ftrt.init() within "
                    f"{self.config.init_timeout_s:g} s; FTRT_INIT_TIMEOUT_S raises the limit"
                )
            time.sleep(0.002)

    def _has_come(self, process: int) -> bool:
        """Whether a process is ready, or has died on the way: then its rank is another's soon."""
        phase = self.board.get(process, Field.PHASE)
        return phase >= Phase.READY or (phase == Phase.STARTING and not self.board.lives(process))

    def _first_epoch(self, members: Membership) -> None:
        epoch = EpochId(self.config.job, self.config.attempt, 1)
        self.core = Recovery(EpochId(self.config.job, self.config.attempt, 0), members)
        self._write_record(epoch, 0, members.members, members.spares, {}, members.members)
        self.core = Recovery(epoch, members, least=self.config.least)
        self._tell_spares()
        self._publish(epoch)
        for rank, process in members.members:
            self._promote(process, rank)
        self._announce()
        self._enter_status(Status.RUNNING)

    def _go_on(self, record: dict, members: Membership) -> None:
        self.record = record
        old = Membership(
            tuple((m["rank"], m["process"]) for m in record["members"]), tuple(record["spares"])
        )
        marks = [StreamMarks.from_json(entry) for entry in record["marks"]]
        epoch = EpochId(self.config.job, record["attempt"], record["epoch"])
        self.core = Recovery(epoch, old, {m.key: m for m in marks}, least=self.config.least)
        self.times.begin(reason="restart from the ledger")
        self.handle(ev.Restarted(self.config.attempt, members))
        self._enter_status(Status.RUNNING)

    def _enter_status(self, status: Status) -> None:
        self.board.set_header(Word.STATUS, status)
        self.board.ring_all()

    # -- loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the attempt ended or failed."""
        poller = select.poll()
        for descriptor in self._descriptors():
            poller.register(descriptor, select.POLLIN)
        while not self.over:
            poller.poll(_TICK_MS)
            self._check_launcher()
            for process in self.watch.deaths():
                self.died(process, self.watch.how(process))
            self._beat()
            self._see_finished()
            for process, by in self.health.overdue():
                self.died(process, by)
            self._see_revoked()
            self.schedule.tick()
            self.times.tick()
            if self._wake_at and time.monotonic() > self._wake_at:
                self._wake_members()
            self._keep_ready()

    def _descriptors(self) -> list[int]:
        """What becomes readable when there is something to do."""
        return [self.watch.descriptor]

    def _beat(self) -> None:
        self.board.words[Word.AGENT_BEAT] += 1

    def _see_finished(self) -> None:
        """Once all have left, nobody receives any more: then nobody is needed by anybody."""
        members = self.core.membership.members
        phases = [self.board.get(process, Field.PHASE) for _, process in members]
        all_left = all(phase in (Phase.LEAVING, Phase.FINISHED) for phase in phases)
        for (rank, process), phase in zip(members, phases, strict=True):
            done = all_left or phase == Phase.FINISHED
            if done and rank not in self.core.now.finished and not self.over:
                self.handle(ev.ProcessFinished(process))

    def died(self, process: int, by: str) -> None:
        """A process is gone or must go."""
        if self.over or process in self.core.now.dead:
            return
        self._see_finished()
        if self.over:
            return
        rank = self._rank_of(process)
        if self.board.get(process, Field.PHASE) == Phase.RAISED:
            self.fail(f"the program raised an error on rank {rank}")
            return
        if not self.config.ulfm:
            self._end_without_ulfm(rank, process, by)
            return
        how = self.health.detection(process, by)
        detected = {"rank": rank, "process": process, "by": by, **how}
        self.times.begin(death_ns(self.board, process), **detected)
        self.events.write_later("died", **detected, epoch=self.core.epoch.counter)
        self.watch.stand_back(process)
        self._rouse_spare(rank)
        self.handle(ev.ProcessDied(process, by))

    def _ranks_of(self, process: int) -> tuple[int, ...]:
        return self.core.membership.ranks_of(process)

    def _rank_of(self, process: int) -> int | None:
        """The rank of a process's own, not one that it inherited; None for a spare."""
        ranks = self.core.membership.ranks_of(process)
        own = self.board.get(process, Field.RANK_PLUS_1) - 1
        if not ranks:
            return None
        return own if own in ranks else ranks[0]

    def _end_without_ulfm(self, rank: int | None, process: int, by: str) -> None:
        """MPI is about to end the survivors: none of them shall begin a next epoch before."""
        epoch = self.core.epoch.counter
        self.events.write("died", rank=rank, process=process, by=by, epoch=epoch)
        self.fail(f"rank {rank} died in epoch {epoch}, and without ULFM nobody outlives it")

    def _see_revoked(self) -> None:
        """End the epoch with the same members where a rank asked for that."""
        epoch = self.core.epoch
        if self.over or int(self.board.words[Word.REVOKED]) != epoch.counter:
            return
        self.times.begin(by="revoked")
        self.handle(ev.CloseAsked(epoch))

    def _rouse_spare(self, rank: int | None) -> None:
        """Wake the spare that will probably take over, so that it is warm when it is told to."""
        if rank is None:
            return
        spares = self.core.who_takes_over(rank)
        if not spares:
            return
        last = self.board.get(spares[0], Field.CANDIDATE)
        times = ((last >> 32) + 1) << 32  # a spare that was woken for the same rank wakes again
        self.board.put(spares[0], Field.CANDIDATE, times | rank + 1)
        # The kernel would wake it here, in the place of this very thread.
        pid = self.board.get(spares[0], Field.PID)
        self._roused = (pid, libc.keep_off_this_core(pid))
        self.board.ring_bell(spares[0])

    def handle(self, event: ev.Event) -> None:
        """Give the core an event and do what it says; answers to effects wait for their turn."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            effects = self.core.handle(self._events[0])
            self._tell_spares()
            for effect in effects:
                if self.over:
                    return
                getattr(self, f"_do_{type(effect).__name__}")(effect)
            self._events.popleft()
        self._announce()

    def _tell_spares(self) -> None:
        """Let everybody see how many spares are left, before an epoch that used one."""
        self.board.set_header(Word.SPARES, self.core.now.spares_left)

    def _announce(self) -> None:
        """Tell what an epoch's publication left for when its spares were on their way."""
        self.events.flush()
        if self._unsettled is None or self._settle_at:
            return
        epoch, self._settle_at = self._unsettled, time.monotonic() + _SETTLE_S
        if self._survivors_wait:
            self._wake_at = time.monotonic() + _HEAD_START_S
        else:
            self._wake_members()
        self._survivors_wait = False
        self.times.decided(epoch.counter)

    def _wake_members(self) -> None:
        """Have everybody move to the epoch that was published."""
        self._wake_at = 0.0
        for _, process in self.core.membership.members:
            self.board.ring_bell(process)

    def _keep_ready(self) -> None:
        """Do now what the next recovery would otherwise wait for."""
        now = time.monotonic()
        if now > self._refresh_at:
            self._refresh_at = now + _REFRESH_S
            self.rings.refresh()
            self.rings.discard_read()
            self.ledgers.refresh(self.core.epoch.counter)
            self._draft.get_ready()
            self._rehearse()
        if self._unsettled is not None and now > self._settle_at:
            self._settle()

    def _rehearse(self) -> None:
        """Go through what a recovery reads: code and data that slept are slow."""
        epoch = self.core.epoch.counter
        with contextlib.suppress(Exception):  # nothing depends on it, and its rank goes on writing
            seals = self.ledgers.peek(epoch)
            evidence.stream_marks(self.config.ledger, seals)
            self.ledgers.states(epoch, seals, self.record.get("states", {}))

    def _settle(self) -> None:
        """Get ready for the epoch after the one that was just entered."""
        assert self._unsettled is not None
        epoch, self._unsettled, self._settle_at = self._unsettled.counter, None, 0.0
        if self._roused is not None:  # not by itself: it would be moved amid its take-over
            libc.keep_to(*self._roused)
            self._roused = None
        self.ledgers.forget_before(epoch)
        here = [rank for rank in map(int, self.record["states"]) if rank in self.ledgers.here]
        self.ledgers.prepare_later(epoch + 1, here)

    # -- effects -----------------------------------------------------------------------------

    def _do_Kill(self, effect: fx.Kill) -> None:
        self.watch.send(effect.process, signal.SIGKILL)

    def _do_Note(self, effect: fx.Note) -> None:
        # Later: a write may wait for the disk, and wakes those who read the events.
        if effect.kind == "depleted":
            self.events.write_later("depleted", reason=effect.text)
        elif effect.kind not in ("died", "suspected", "cleared"):
            self.events.write_later("note", text=effect.text, kind=effect.kind)

    def _do_CloseLedgers(self, effect: fx.CloseLedgers) -> None:
        self.schedule.in_recovery()
        epoch = effect.epoch.counter
        self._seals = self.ledgers.close(epoch, effect.ranks)
        self.times.end("revoke")
        marks = evidence.stream_marks(self.config.ledger, self._seals)
        self.handle(ev.LedgersClosed(effect.epoch, marks, heirs=self._heirs(marks)))

    def _heirs(self, marks: dict) -> Heirs:
        """Who could take over what no spare does; none of them leaves before it is decided."""
        lost = self.core.orphans()
        if not lost:
            return Heirs()
        now = self.core.now
        willing = frozenset(p for _, p in now.acting.members if self._hold(p))
        if self._policy is None:
            return Heirs(willing)
        able = candidates(now.acting, now.dead, now.finished, willing)
        living = sorted(rank for process in able for rank in now.acting.ranks_of(process))
        chosen, refused = self._policy.ask(lost, living, sorted(now.marks | marks))
        return Heirs(willing, chosen, refused)

    def _hold(self, process: int) -> bool:
        """Keep a process that is willing from leaving."""
        word = self.board.index(process, Field.HEIR)
        held, willing = Heir.HELD.value, Heir.WILLING.value
        was = int(atomics.swap_if(self.board.words, word, willing, held))
        return was in (held, willing) and process not in self.core.now.dead

    def _let_go(self) -> None:
        """Those that were held know the epoch now."""
        for process in self._everybody if self.config.least else ():
            word = self.board.index(process, Field.HEIR)
            atomics.swap_if(self.board.words, word, Heir.HELD.value, Heir.WILLING.value)

    def _do_CreateRecord(self, effect: fx.CreateRecord) -> None:
        self._inherited = effect.inherited
        replaced = {rank for rank, _ in (*effect.promotions, *effect.inherited)}
        for key, upto in self.rings.fence(replaced).items():
            self._delivered[key] = upto
        self.times.end("agree")
        try:
            made = self._write_record(
                effect.epoch,
                effect.parent.counter,
                effect.members,
                effect.spares,
                effect.marks,
                effect.promotions,
                effect.dead,
            )
        except (OSError, LedgerError) as error:
            self.handle(ev.RecordFailed(effect.epoch, str(error)))
            return
        if made:
            self.handle(ev.RecordCreated(effect.epoch))
        else:
            self._found(effect.epoch)

    def _found(self, epoch: EpochId) -> None:
        record = read_record(self.config.ledger, epoch.counter)
        self.record = record
        theirs = EpochId(record["job"], record["attempt"], record["epoch"])
        members = tuple((m["rank"], m["process"]) for m in record["members"])
        entries = [StreamMarks.from_json(entry) for entry in record["marks"]]
        marks = {entry.key: entry for entry in entries}
        self.handle(ev.RecordFound(theirs, members, tuple(record["spares"]), marks))

    def _write_record(self, epoch, parent, members, spares, marks, promotions, dead=()) -> bool:
        self.ledgers.prepare(epoch.counter)
        since = {m["rank"]: m["since"] for m in self.record.get("members", [])}
        new, self._inherited = self._inherited, ()
        since.update({rank: epoch.counter for rank, _ in (*promotions, *new)})
        before = [tuple(pair) for pair in self.record.get("inherited", ())]
        record = {
            "format": 1,
            "job": epoch.job,
            "attempt": epoch.attempt,
            "epoch": epoch.counter,
            "parent": parent,
            "members": [
                {
                    "rank": rank,
                    "process": process,
                    "pid": self.board.get(process, Field.PID),
                    "since": since[rank],
                }
                for rank, process in members
            ],
            "spares": list(spares),
            "inherited": [list(p) for p in members if p in new or p in before],
            "dead": list(dead),
            "seals": self._sealed(),
            "marks": [self._mark_entry(entry) for entry in marks.values()],
            "states": self._states(parent),
            **self._more(),
        }
        made = create_record(self.config.ledger, record, self.config.durable, self._draft)
        if made:
            self.record = record
        return made

    def _sealed(self) -> list[dict]:
        """Seals of the ledgers of the epoch that ends."""
        return [entry for seals in self._seals.values() for entry in seals]

    def _states(self, epoch: int) -> dict:
        """Where the state of each rank lies."""
        return self.ledgers.states(epoch, self._seals, self.record.get("states", {}))

    def _more(self) -> dict:
        """What a record has besides."""
        return {}

    def _mark_entry(self, marks: StreamMarks) -> dict:
        return {**marks.to_json(), "delivered": self._delivered.get(marks.key, 0)}

    def _do_Publish(self, effect: fx.Publish) -> None:
        self._publish(effect.epoch)
        self.handle(ev.EpochPublished(effect.epoch))

    def _publish(self, epoch: EpochId) -> None:
        self.board.set_header(Word.EPOCH, epoch.counter)  # before anybody is told its rank
        self._let_go()
        self.times.end("claim")
        self._unsettled, self._settle_at = epoch, 0.0

    def _do_Promote(self, effect: fx.Promote) -> None:
        self._promote(effect.process, effect.rank)
        self._survivors_wait = self._through_memory
        if effect.process in self.config.own:
            self.times.promoted(effect.process)
        self.events.write_later(
            "promoted", rank=effect.rank, process=effect.process, epoch=effect.epoch.counter
        )

    def _do_Inherit(self, effect: fx.Inherit) -> None:
        left = len({process for _, process in self.core.membership.members})
        heir = self._rank_of(effect.process)
        self.events.write_later(
            "shrunk",
            rank=effect.rank,
            heir=heir,
            process=effect.process,
            epoch=effect.epoch.counter,
            left=left,
            reason=f"rank {heir} takes over its streams, {left} of {self.config.ranks} are left",
        )
        self.board.ring_bell(effect.process)

    def _promote(self, process: int, rank: int) -> None:
        self.board.put(process, Field.RANK_PLUS_1, rank + 1)
        self.board.ring_bell(process)

    def _do_End(self, effect: fx.End) -> None:
        self.times.tell()
        self._enter_status(Status.ENDED)
        self.over = True

    def _do_Fail(self, effect: fx.Fail) -> None:
        self.fail(effect.reason)

    def fail(self, reason: str) -> None:
        """End this attempt: every process hears of it at its next call."""
        if hasattr(self, "times"):
            self.times.tell_later()
        self.events.write("failed", reason=reason)
        self._enter_status(Status.FAILED)
        self.over = True

    def stop(self, error: Exception) -> None:
        """End the attempt because the agent itself cannot go on."""
        reason = str(error)
        if not isinstance(error, (FtrtError, OSError)):
            log = self.config.run_directory / "agent.log"
            reason = f"the host agent failed ({type(error).__name__}: {error}); see {log}"
        if isinstance(error, LauncherGone):
            self._grace_s = 0.0
        self._close_ledgers()
        if hasattr(self, "board"):
            self.fail(reason)
        else:
            self.events.write("failed", reason=reason)

    def _close_ledgers(self) -> None:
        """No commit of this attempt counts from now on; the next one reads what did."""
        if hasattr(self, "core"):
            with contextlib.suppress(OSError, LedgerError):  # the next attempt closes them as well
                self.ledgers.close(self.core.epoch.counter, self.ledgers.here)

    # -- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """See everybody off, by force after a grace; leave no shared memory behind."""
        if self._policy is not None:
            self._policy.close()
        if hasattr(self, "schedule"):
            self.schedule.resume_all()
        if hasattr(self, "watch"):
            members = self.core.membership if hasattr(self, "core") else None
            farewell = Farewell(self.config, self.board, self.watch, members, self._meanwhile)
            farewell.wait(self._grace_s)
            if self.board.status is Status.ENDED:
                farewell.vouch(self.core.epoch.counter)
        self.ledgers.discard_blanks()
        shutil.rmtree(self.directory, ignore_errors=True)
        if not any(self._lives(process) for process in self._everybody):
            self._remove_leftovers()  # theirs may be in use
        if not self._grace_s:  # the launcher would have done it
            shutil.rmtree(mpi_directory(self.config.job), ignore_errors=True)

    def _meanwhile(self) -> None:
        """What goes on while the attempt's processes are waited for."""

    def _remove_leftovers(self) -> None:
        remove_leftovers(self.config.ledger, self.config.job)

    def _lives(self, process: int) -> bool:
        return hasattr(self, "watch") and self.watch.alive(process)

    @property
    def _everybody(self) -> list[int]:
        return self.config.own


def make_agent(config: Config) -> Agent:
    """The agent that a job needs."""
    if not config.several:
        return Agent(config)
    from ftrt.hosts.agent import HostAgent

    return HostAgent(config)


def main() -> int:
    """Entry of ``python -m ftrt.host.agent``; everything it needs is in the environment."""
    config = environment_config()
    libc.ask_short_slice()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent = make_agent(config)
    signal.signal(signal.SIGTERM, agent.told_to_end)
    try:
        agent.start()
        gc.freeze()  # a collection amid a recovery need not go through all that was loaded
        while not agent.over:
            with contextlib.suppress(InterruptedError):
                agent.run()
    except Exception as error:
        traceback.print_exc()
        agent.stop(error)
    finally:
        agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
