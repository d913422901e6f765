"""The agent of a host in a job over several hosts.

It does for its own ranks what :class:`ftrt.host.agent.Agent` does. Besides, it tells the other
agents what its board says of them and shows on its own board what it hears of theirs, so that a
rank finds all processes on the board of its host; and epochs are made in council.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from ftrt.agree import effects as fx
from ftrt.agree import events as ev
from ftrt.agree.agreement import AgreedRecord
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.events import State
from ftrt.agree.marks import StreamMarks
from ftrt.agree.recovery import Recovery
from ftrt.errors import DeadlineExceeded, FtrtError, LedgerError
from ftrt.host.agent import Agent, LauncherGone
from ftrt.host.board import Status
from ftrt.host.shm import sweep, sweep_before
from ftrt.host.words import mpi_directory
from ftrt.hosts.closings import Closing, HostLedgers
from ftrt.hosts.council import Council
from ftrt.hosts.hearing import Hearing
from ftrt.hosts.mesh import HEAD, Mesh
from ftrt.hosts.mirror import Mirror
from ftrt.ledger.record import latest_epoch, read_record, record_path
from ftrt.runtime.config import Config

_TICK_S = 0.05
_LINGER_S = 5.0
_DAEMON_ENDS_S = 2.0


class HostAgent(Agent):
    """One attempt of one job on one of its hosts."""

    def __init__(self, config: Config):
        if config.host != HEAD:
            sweep()  # the launcher does so where it is
            sweep_before(config.job, config.attempt)
        super().__init__(config)
        self.me = config.host
        if config.head is None:
            raise FtrtError("FTRT_HEAD is not set: `ftrt run --hosts` sets it")
        listener = None
        if config.head_fd is not None:
            listener = socket.socket(fileno=config.head_fd)
        key = bytes.fromhex(config.token)
        self.mesh = Mesh(self.me, len(config.hosts), key, config.head, listener)
        self.council = Council(
            self.me, send=self._send, decide=self._decide, join=self._join, find=self._find
        )
        self.hearing = Hearing(config)
        self._mirror: Mirror | None = None
        self._closing = Closing()
        self.ledgers_here = HostLedgers(config, self.ledgers)
        self._tick_at_s = 0.0
        self._reason = ""
        self._fenced_off = False

    # -- start -------------------------------------------------------------------------------

    def _clear_the_way(self, last: int) -> None:
        self.ledgers.here = ()
        if self.me == HEAD:
            self.ledgers.discard_after(last)

    def _enter(self, last: int | None, members: Membership) -> None:
        """The first agent makes the first epoch of the attempt, the others wait for it."""
        self._mirror = Mirror(self.config, self.board)
        self._mirror.ready = True
        self._await("were not ready", lambda: self._mirror_ready)
        if self.me == HEAD:
            super()._enter(last, members)
            return
        found: list[dict] = []

        def made() -> bool:
            counter = latest_epoch(self.config.ledger)
            if counter is not None:
                record = read_record(self.config.ledger, counter)
                if record["attempt"] == self.config.attempt:
                    found.append(record)
            return bool(found)

        self._await("made no epoch", made)
        self._begin(found[0], members)

    @property
    def _mirror_ready(self) -> bool:
        others = range(len(self.config.hosts)) if self.me == HEAD else [HEAD]
        return self._mirror is not None and self._mirror.ready_hosts.issuperset(others)

    def _begin(self, record: dict, members: Membership) -> None:
        """Act in an epoch that another agent made."""
        epoch = EpochId(record["job"], record["attempt"], record["epoch"])
        pairs = tuple((m["rank"], m["process"]) for m in record["members"])
        theirs = Membership(pairs, tuple(record["spares"]), members.places)
        entries = [StreamMarks.from_json(entry) for entry in record["marks"]]
        self.record = record
        self.core = Recovery(epoch, theirs, {entry.key: entry for entry in entries})
        self._take_up(record)
        self._publish(epoch)
        for rank, process in pairs:
            self._promote(process, rank)
        self._announce()
        self._enter_status(Status.RUNNING)

    def _await(self, what: str, ready: Any) -> None:
        deadline = time.monotonic() + self.config.init_timeout_s
        while not ready():
            self._beat()
            self._check_launcher()
            if self.over:
                raise FtrtError(self._reason or "the attempt failed on another host")
            if time.monotonic() > deadline:
                late = [n for a, n in enumerate(self.config.hosts) if not self._is_ready(a)]
                raise DeadlineExceeded(
                    f"the agents of hosts {', '.join(late) or 'all'} {what} within "
                    f"{self.config.init_timeout_s:g} s; FTRT_INIT_TIMEOUT_S raises the limit"
                )
            time.sleep(0.002)

    def _is_ready(self, host: int) -> bool:
        return self._mirror is not None and host in self._mirror.ready_hosts

    # -- loop --------------------------------------------------------------------------------

    def _descriptors(self) -> list[int]:
        return [*super()._descriptors(), self.mesh.fileno()]

    def _check_launcher(self) -> None:
        """Besides, hear what the other agents say; called in each turn of each loop."""
        super()._check_launcher()
        for sender, message in self.mesh.step():
            self.hearing.heard(sender)
            self._take(sender, message)
        now_s = time.monotonic()
        self.hearing.step(now_s, self.mesh)
        if self.me != HEAD and self.mesh.is_gone(HEAD) and not self._peer_is_over(HEAD):
            raise LauncherGone(f"the agent of host {self.config.hosts[HEAD]} is gone")
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + _TICK_S
            self._tick()

    def _tick(self) -> None:
        mirror = self._mirror
        if mirror is None:
            return
        epoch = self.core.epoch.counter if hasattr(self, "core") else 0
        dead = self.core.now.dead if hasattr(self, "core") else frozenset()
        gossip = mirror.gossip(
            epoch,
            dead,
            status=self.board.status,
            over=self.over,
            fenced=self._fenced_off,
            reason=self._reason,
        )
        self.mesh.send_all(gossip)
        if self.over or not hasattr(self, "core") or not self.board.epoch:
            return
        self.council.tick()
        if self.council.open or self.hearing.uneasy:
            self._find(self.core.epoch.counter + 1)
        self._judge_hosts()

    def _judge_hosts(self) -> None:
        """Who is silent: first note it, then let no more commits happen, then go on without it."""
        for host in self.record["hosts"]:
            if self.over or host == self.me:
                continue
            name, change = self.config.hosts[host], self.hearing.change(host)
            if change:
                silent_s = round(self.hearing.silent_s(host), 3)
                self.events.write(f"host {change}", host=name, silent_s=silent_s)
            if change == "heard":
                self.council.hold_for_alive(host)
            if self.hearing.is_overdue(host) and self.core.state is State.RUNNING:
                self.times.begin(reason=f"nothing was heard of host {name}")
                self.handle(ev.CloseAsked(self.core.epoch))
            if self.hearing.is_lost(host):
                if host == HEAD and not self.over:
                    self._fence("nothing was heard of the first host, where mpirun is")
                else:
                    self.council.hold_for_dead(host)

    def _peer_is_over(self, host: int) -> bool:
        return self._mirror is not None and host in self._mirror.over_hosts

    # -- messages ------------------------------------------------------------------------------

    def _send(self, agent: int, message: dict[str, Any]) -> None:
        self.mesh.send(agent, {**message, "d": sorted(self.core.now.dead)})

    def _take(self, sender: int, message: dict[str, Any]) -> None:
        kind, mirror = message.get("k"), self._mirror
        if kind == "gossip" and mirror is not None:
            mirror.show(sender, message)
            self._heed(sender, message)
        elif kind == "dead" and mirror is not None:
            mirror.show_dead(int(message["p"]))
            self._died_elsewhere([int(message["p"])])
        elif kind == "agree" and hasattr(self, "core") and not self.over:
            if int(message["e"]) == self.core.epoch.counter + 1:
                self._died_elsewhere(message["d"])
            self.council.take(sender, message)

    def _heed(self, sender: int, message: dict[str, Any]) -> None:
        """Follow another agent to the end of the attempt, whatever that is."""
        if self.over:
            return
        if message["s"] == Status.FAILED and not message["fenced"]:
            self._reason = str(message["why"])
            self.over = True
            if hasattr(self, "board"):
                self._enter_status(Status.FAILED)
        elif message["s"] == Status.ENDED and hasattr(self, "core"):
            if message["e"] != self.core.epoch.counter:
                return  # it is behind, or we are: then a record says more
            for process in sorted(self.core.membership.processes - set(self._spares)):
                if not self.over:
                    self.handle(ev.ProcessFinished(process))

    @property
    def _spares(self) -> Sequence[int]:
        return self.core.membership.spares

    def _died_elsewhere(self, processes: Sequence[int]) -> None:
        if not hasattr(self, "core"):
            return
        for process in processes:
            known = process in self.core.now.dead or process in self.config.own
            if not self.over and not known and process in self.core.now.acting.processes:
                self.handle(ev.ProcessDied(process, "exit"))

    def died(self, process: int, by: str) -> None:
        if not self.over and process not in self.core.now.dead:
            self.mesh.send_all({"k": "dead", "p": process})  # first: nobody shall send to it
        super().died(process, by)

    # -- epochs --------------------------------------------------------------------------------

    def _take_up(self, record: dict) -> None:
        """Be ready to act in an epoch that exists."""
        self.ledgers.here = self.ledgers_here.ranks_of(record, self.me)
        self.ledgers.prepare(record["epoch"])

    def _do_CloseLedgers(self, effect: fx.CloseLedgers) -> None:
        """Close and write what this host has of the epoch, then take part in making the next."""
        self._closing = Closing()
        if self.core.now.fresh is not None:
            super()._do_CloseLedgers(effect)  # of an attempt that is over: storage has all of it
            return
        epoch = effect.epoch.counter
        if self.record["epoch"] > epoch:  # another host ended it, and perhaps without us
            self.ledgers.close(epoch, self.ledgers.here)
            return
        if self.council.meets(epoch + 1):
            return
        self.schedule.in_recovery()
        try:
            closing = self.ledgers_here.close(self.record, self.core.now)
            closing.write(self.config.run_directory, epoch, self.me)
        except (OSError, LedgerError) as error:
            self.fail(f"the ledgers of host {self.config.hosts[self.me]} cannot be closed: {error}")
            return
        self.times.end("revoke")
        self.council.begin(self._next(epoch), self.record["hosts"])

    def _next(self, counter: int) -> EpochId:
        return EpochId(self.config.job, self.config.attempt, counter + 1)

    def _decide(self, wanted: AgreedRecord) -> bool:
        """Everybody who lives has closed: put it together and let the core decide."""
        core = self.core
        if core.epoch.counter + 1 != wanted.epoch.counter or core.state is not State.CLOSING:
            return True
        if self.me != HEAD and not self.hearing.hears(HEAD):
            return False
        try:
            gathered = self.ledgers_here.gather(self.record, wanted.members)
        except (OSError, LedgerError) as error:
            self.fail(str(error))
            return True
        if gathered is None:
            return False
        self._closing = gathered
        self._died_elsewhere(gathered.dead)
        for process in gathered.finished:
            if not self.over:
                self.handle(ev.ProcessFinished(process))
        living = sorted(core.now.acting.processes - core.now.dead)
        left_out = [p for p in living if self.config.host_of(p) not in wanted.members]
        if not self.over:
            self.handle(ev.LedgersClosed(core.epoch, gathered.marks, tuple(left_out)))
        return True

    def _write_record(self, epoch, parent, members, spares, marks, promotions, dead=()) -> bool:
        of = self.config.host_of
        self.ledgers.here = [rank for rank, process in members if of(process) == self.me]
        return super()._write_record(epoch, parent, members, spares, marks, promotions, dead)

    def _sealed(self) -> list[dict]:
        return super()._sealed() + self._closing.seals

    def _states(self, epoch: int) -> dict:
        before = self.record.get("states", {})
        return {**before, **super()._states(epoch), **self._closing.states}

    def _more(self) -> dict:
        agreed = self.council.agreed
        if agreed is None or agreed.epoch.counter != self.core.now.epoch.counter + 1:
            return {"hosts": list(range(len(self.config.hosts))), "coordinator": self.me}
        return {"hosts": list(agreed.members), "coordinator": agreed.coordinator}

    def _do_Publish(self, effect: fx.Publish) -> None:
        self._seals = {}
        self._take_up(self.record)
        if self._mirror is not None:
            for process in range(self.config.processes):
                if self.config.host_of(process) not in self.record["hosts"]:
                    self._mirror.show_dead(process)
        super()._do_Publish(effect)
        members = tuple(self.record["hosts"])
        self.council.recorded(AgreedRecord(effect.epoch, self.record["coordinator"], members))

    def _join(self, counter: int) -> None:
        """Somebody makes an epoch: close ours, unless its record exists already."""
        self._find(counter)
        core = self.core
        if counter == core.epoch.counter + 1 and core.state is State.RUNNING and not self.over:
            self.handle(ev.CloseAsked(core.epoch))

    def _find(self, counter: int) -> None:
        """Go with the record of our epoch's successor if there is one."""
        core = self.core
        running = core.state in (State.RUNNING, State.CLOSING, State.RECORDING)
        if self.over or not running or counter != core.epoch.counter + 1:
            return
        if record_path(self.config.ledger, counter).exists():
            self._found(self._next(counter - 1))

    def _found(self, epoch: EpochId) -> None:
        """Adopt a record that this host is in; without it nobody here may act any more."""
        record = read_record(self.config.ledger, epoch.counter)
        if self.me in record.get("hosts", ()) and record["attempt"] == self.config.attempt:
            super()._found(epoch)
        else:
            self._fence(f"epoch {epoch.counter} was made without this host")

    # -- the end -------------------------------------------------------------------------------

    def _do_Note(self, effect: fx.Note) -> None:
        if self.me == HEAD or effect.kind not in ("depleted", "adopted"):
            super()._do_Note(effect)  # else all agents would say the same

    def fail(self, reason: str) -> None:
        self._reason = reason
        super().fail(reason)

    def _do_Fail(self, effect: fx.Fail) -> None:
        if effect.fenced:
            self._fence(effect.reason)
        else:
            super()._do_Fail(effect)

    def _fence(self, reason: str) -> None:
        """The job goes on without this host, or may: nobody here acts any more."""
        self._fenced_off = True
        self.events.write("fenced", host=self.config.hosts[self.me], reason=reason)
        for process in self.config.own:
            self.watch.send(process, signal.SIGKILL)
        self._reason, self.over = reason, True
        self._enter_status(Status.FAILED)

    def _meanwhile(self) -> None:
        with contextlib.suppress(FtrtError):
            self._check_launcher()

    def _clean_after_mpi(self) -> None:
        """Remove what mpirun's daemon and killed ranks leave in the memory of this host."""
        directory, end = mpi_directory(self.config.job), time.monotonic() + _DAEMON_ENDS_S
        while any(directory.glob("prterun*")) and time.monotonic() < end:
            self._meanwhile()
            time.sleep(0.02)
        shutil.rmtree(directory, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """The launcher does, once no host uses them any more."""

    def close(self) -> None:
        """See our own off, and let the others know how it ended."""
        super().close()
        if self.me != HEAD:
            self._clean_after_mpi()
        end = time.monotonic() + (0.0 if self._fenced_off else _LINGER_S)
        others = [a for a in range(len(self.config.hosts)) if a != self.me]
        while time.monotonic() < end and not all(
            self._peer_is_over(a) or self.mesh.is_gone(a) or self.hearing.is_lost(a) for a in others
        ):
            self._meanwhile()
            time.sleep(0.005)
        self._meanwhile()
        self.mesh.close()
