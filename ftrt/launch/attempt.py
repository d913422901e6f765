"""One attempt: start mpirun, follow it, judge it, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.host.shm import hold
from ftrt.host.start import failure_before_the_board, start_agent
from ftrt.host.words import job_directory, mpi_directory
from ftrt.launch import leftovers
from ftrt.launch.gauge import Gauge
from ftrt.launch.hosts import Place
from ftrt.launch.judge import Verdict, before_the_job, judge, read_ranks
from ftrt.launch.output import Output
from ftrt.launch.patience import AgentPatience, TailPatience
from ftrt.launch.samples import Samples
from ftrt.launch.screen import PlainScreen, Suspicions
from ftrt.launch.starting import Children
from ftrt.launch.stop import Stop
from ftrt.runtime.config import Config

#: How long mpirun may take to end once all ranks are done and gone.
GRACE_S = 5.0

#: How long it may take once the attempt is lost: what ranks have printed still comes through.
BAD_GRACE_S = 1.0

#: How long the agent may take to close the ledgers of an attempt that is told to stop.
_CLOSES_WITHIN_S = 2.0

_MPIRUN_ENDS_S = 1.0
_POLL_S = 0.05
#: While mpirun starts them: a process that ends at once is seen, so that it is known how it ended.
_FIRST_POLL_S = 0.01
_PR_SET_PDEATHSIG = 1


class Events:
    """Reads the job's event files, one for each host, as they grow, over all attempts."""

    def __init__(self, directory: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        self._directory = directory
        self._offsets = {path: path.stat().st_size for path in self._paths}

    def new(self, attempt: int) -> list[dict[str, Any]]:
        """Return the events whose lines are complete and were not returned before."""
        events: list[dict[str, Any]] = []
        for path in self._paths:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):
                    events.append({"attempt": attempt, **json.loads(line)})
        self.seen += events
        return events

    @property
    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("events*.jsonl"))


class Attempt:
    """Runs one mpirun to its end.

    Parameters
    ----------
    command, env : list of str, dict
        What to start.
    ledger : Path
        The ledger's directory; the ranks record below ``run/attempt-A`` how they ended.
    ranks : int
        Number of ranks that have to record it.
    place : Place
        Where they run.
    """

    def __init__(
        self,
        command: list[str],
        env: dict[str, str],
        ledger: Path,
        ranks: int,
        events: Events,
        screen: PlainScreen,
        place: Place,
    ) -> None:
        self._place = place
        self._command = command
        self._env = env
        self._config = Config.from_environment(env)
        self._agent: subprocess.Popen[bytes] | None = None
        self._number = int(env["FTRT_ATTEMPT"])
        self._ledger = ledger
        self._directory = ledger / "run" / f"attempt-{self._number}"
        self._ranks = ranks
        self._events = events
        self._screen = screen
        self._suspicions = Suspicions()
        self._gauge = Gauge(job_directory(env["FTRT_JOB"], self._number) / "board")
        self._samples = Samples(ledger / "run", self._number)
        self._lost_since: float | None = None
        self._gave_up = ""
        self._mpirun_ended: int | None = None
        self.output = Output(screen.out, screen.err)
        self.records: dict[int, dict[str, Any]] = {}

    def run(self, stop: Stop) -> Verdict:
        """Start, follow and tear down; the verdict of a stopped attempt is 'failed'."""
        if stop.signum:
            return _stopped(stop)
        self._directory.mkdir(parents=True, exist_ok=True)
        shared = mpi_directory(self._env["FTRT_JOB"])
        shared.mkdir(mode=0o700, exist_ok=True)
        held = hold(shared)
        self._agent = self._start_agent()  # it gets ready while mpirun does
        self._agent_patience = AgentPatience(self._agent, self._gauge)
        process = self._start_mpirun()
        try:
            if process.stdout is not None and process.stderr is not None:
                self.output.follow(process.stdout, process.stderr)
            verdict = self._follow(process, stop)
            if verdict.kind == "done":
                self._see_off(process, stop)
            orderly = verdict.kind == "done" and not self._silent_hosts()
            self._wait(process, GRACE_S if orderly else BAD_GRACE_S)
            self._mpirun_ended = process.poll()
            if process.poll() is not None and self._agent.poll() is None:
                self._wait(self._agent, BAD_GRACE_S)  # it speaks for ranks that could not
        finally:
            self._tear_down(process)
            if held is not None:
                os.close(held)
        if stop.signum:  # who died of it is no news
            return _stopped(stop)
        self._show_events()  # and the output was read to its end
        self._samples.add(self._gauge.read(now := time.monotonic()), now, last=True)
        signum = self.output.signum
        return self._final(verdict, 128 + signum if signum else process.returncode)

    def _start_agent(self) -> subprocess.Popen[bytes]:
        listener = self._place.listener
        if listener is None:
            return start_agent(self._config, self._env)
        config = dataclasses.replace(self._config, head_fd=listener.fileno())
        agent = start_agent(config, {**self._env, "FTRT_HEAD_FD": str(listener.fileno())})
        self._place.close()
        return agent

    def _start_mpirun(self) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # so that its group can be signalled without us in it
                preexec_fn=_end_with_parent(os.getpid()),
            )
        except OSError as error:
            leftovers.clean(self._env["FTRT_JOB"], self._directory, GRACE_S)
            raise UsageError(
                f"{self._command[0]} cannot be started ({error.strerror}), nothing has run; "
                "name another mpirun with --mpirun or FTRT_MPIRUN"
            ) from error

    def _follow(self, process: subprocess.Popen[str], stop: Stop) -> Verdict:
        """Return once the attempt is decided, told to stop, or without an mpirun."""
        with contextlib.closing(Children(process.pid, self._config.own)) as children:
            return self._until_decided(process, stop, children)

    def _until_decided(
        self, process: subprocess.Popen[str], stop: Stop, children: Children
    ) -> Verdict:
        while True:
            ended = process.poll() is not None
            self._show_events()
            verdict = self._judge(ended)
            if stop.signum:
                self._close_ledgers()
                _signal_group(process, stop.signum)
                return Verdict("failed", "stopped")
            if verdict.kind == "running" and (reason := self._reason()):
                return Verdict("failed", reason)
            if verdict.kind == "running":
                self._gave_up = self._agent_patience.overdue(time.monotonic())
                if self._gave_up:
                    return Verdict("failed", self._gave_up)
            if verdict.kind == "running" and not self._gauge.running:
                verdict = self._judge_start(children)
            if verdict.kind != "running":
                return verdict
            time.sleep(_POLL_S if children.all_seen else _FIRST_POLL_S)

    def _close_ledgers(self) -> None:
        """Have the agent end the attempt, so that nothing is committed any more."""
        agent = self._agent
        if agent is None or agent.poll() is not None:
            return
        agent.terminate()
        end = time.monotonic() + _CLOSES_WITHIN_S
        while agent.poll() is None and not self._reason() and time.monotonic() < end:
            time.sleep(0.01)
            self._show_events()

    def _judge(self, ended: bool) -> Verdict:
        self.records = read_ranks(self._directory, self._ranks)
        return judge(self.records, self._ranks, ended)

    def _judge_start(self, children: Children) -> Verdict:
        """A process that is gone before the job runs will never join it, nor without an agent."""
        if reason := failure_before_the_board(self._agent, self._config):
            return Verdict("failed", reason)
        lost = [p for p in children.missing() if not self._gauge.knows(p)]
        now = time.monotonic()
        if not lost:
            self._lost_since = None
            return Verdict("running")
        self._lost_since = self._lost_since or now
        if now - self._lost_since < _MPIRUN_ENDS_S:
            return Verdict("running")  # mpirun may be about to tell it better
        verdict = children.verdict(lost[0])
        self._gave_up = verdict.reason if verdict.kind == "failed" else ""
        return verdict

    def _final(self, decided: Verdict, status: int | None) -> Verdict:
        """The verdict once everything is recorded and nobody is left."""
        verdict = self._judge(ended=True)
        if verdict.kind == "done" and status and 0 < status < 128 and not self._lost_anybody():
            return Verdict("error", f"a rank left with status {status} after its work was done")
        if verdict.kind != "failed":
            return verdict
        if decided.kind == "error":
            return decided
        if self._mpirun_ended is not None and self._mpirun_ended < 0 and self._began():
            return Verdict("failed", self._without_mpirun(-self._mpirun_ended))
        if (
            reason := self._reason() or self._gave_up
        ):  # the host's agent knows best why nothing could be repaired
            return Verdict("failed", self._left_because() or reason)
        if self.records or self._began():
            return verdict
        if shown := self.output.tracebacks.shown:
            return Verdict("error", "the program raised before it had joined the job", shown[0])
        return before_the_job(status)

    def _without_mpirun(self, signum: int) -> str:
        return (
            f"mpirun was ended by {signal.Signals(signum).name}, and its ranks with it; nothing "
            "that was committed is lost, `ftrt run --resume` goes on from the ledger"
        )

    def _lost_anybody(self) -> bool:
        """Did a process die in this attempt? Then mpirun's status says nothing of the others."""
        mine = (e for e in self._events.seen if e.get("attempt") == self._number)
        gone = ("died", "fault", "fenced", "host silent")
        return any(event.get("event") in gone for event in mine)

    def _began(self) -> bool:
        """Was an epoch of this attempt ever in force?"""
        if self._gauge.running:
            return True
        records = sorted((self._ledger / "epochs").glob("*.json"))
        with contextlib.suppress(OSError, ValueError, IndexError):
            return json.loads(records[-1].read_text()).get("attempt") == self._number
        return False

    def _reason(self) -> str:
        """Why the host's agent gave the attempt up, empty if it did not."""
        for event in self._events.seen:
            if event.get("event") == "failed" and event.get("attempt") == self._number:
                return str(event.get("reason") or "no reason was recorded")
        return ""

    def _left_because(self) -> str:
        """What a rank said that the agent saw die, empty if all died without a word."""
        mine = [e for e in self._events.seen if e.get("attempt") == self._number]
        died = [event.get("rank") for event in mine if event.get("event") == "died"]
        for rank in reversed(died):  # the record of an earlier one may be its successor's
            record = self.records.get(-1 if rank is None else rank, {})
            if record.get("status") == "failed" and record.get("reason"):
                return f"rank {rank}: {str(record['reason']).removeprefix(f'rank {rank}: ')}"
        return ""

    def _show_events(self) -> None:
        now = time.monotonic()
        for event in self._suspicions.pass_on(self._events.new(self._number), now):
            self._screen.event(event)
        reading = self._gauge.read(now)
        self._screen.progress(reading)
        self._samples.add(reading, now)

    def _see_off(self, process: subprocess.Popen[str], stop: Stop) -> None:
        """Let the ranks do what their program does after the job's work, within limits.

        Their work is recorded and safe; what is theirs alone ends like any program, by a signal to
        this launcher, or after the time-outs of a rank that works.
        """
        config = self._config
        patience = TailPatience(config.evict_timeout_s, config.stall_timeout_s)
        pids, ended = self._directory / "pids", set[int]()
        end = time.monotonic() + (config.stall_timeout_s if config.several else 0.0)
        while process.poll() is None:
            left = leftovers.by_file(pids) - ended
            elsewhere = time.monotonic() < end and not self._silent_hosts()
            if not left and not elsewhere:
                return
            overdue = patience.overdue(left, time.monotonic())
            ended.update(overdue)
            for pid, did in overdue.items():
                self._screen.note(
                    f"process {pid} {did} after the job's work was done and recorded: it is ended"
                )
            leftovers.kill(overdue)
            if stop.signum:
                _signal_group(process, stop.signum)
                return
            self._show_events()
            time.sleep(_POLL_S)

    def _silent_hosts(self) -> bool:
        """Whether some host is not heard of: mpirun would wait for it for ever."""
        states: dict[Any, str] = {}
        for event in self._events.seen:
            if event.get("attempt") == self._number and event.get("event", "").startswith("host "):
                states[event.get("host")] = event["event"]
        return "host silent" in states.values()

    def _wait(self, process: subprocess.Popen[Any], timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)

    def _tear_down(self, process: subprocess.Popen[str]) -> None:
        _signal_group(process, signal.SIGKILL)
        self._wait(process, GRACE_S)
        leftovers.clean(self._env["FTRT_JOB"], self._directory, GRACE_S)
        if self._agent is not None:
            self._wait(self._agent, GRACE_S)
        self.output.join(1.0)


def _stopped(stop: Stop) -> Verdict:
    return Verdict(
        "failed",
        f"stopped by {signal.Signals(stop.signum).name}; nothing that was committed is lost, "
        "`ftrt run --resume` goes on from the ledger",
    )


def _signal_group(process: subprocess.Popen[str], signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)


def _end_with_parent(parent: int) -> Callable[[], None]:
    """What a child does to get SIGTERM when its parent dies, even by SIGKILL (Linux)."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
