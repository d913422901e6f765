"""One attempt: start mpirun, follow it, judge it, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ftrt.launch import leftovers
from ftrt.launch.judge import Verdict, judge, read_ranks
from ftrt.launch.output import Output
from ftrt.launch.screen import PlainScreen, Suspicions

#: How long mpirun may take to end once the ranks are done, have failed, or were told to stop.
GRACE_S = 5.0
_POLL_S = 0.05


class Stop:
    """Remembers SIGINT or SIGTERM while it is entered."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for signum in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: the caller's business
                self._before[signum] = signal.signal(signum, self._remember)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _remember(self, signum: int, frame: object) -> None:
        self.signum = signum


class Events:
    """Reads the job's event file as it grows, over all attempts."""

    def __init__(self, path: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new(self, attempt: int) -> list[dict[str, Any]]:
        """Return the events whose lines are complete and were not returned before."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                events.append({"attempt": attempt, **json.loads(line)})
        self.seen += events
        return events


class Attempt:
    """Runs one mpirun to its end.

    Parameters
    ----------
    command, env : list of str, dict
        What to start.
    directory : Path
        ``run/attempt-A`` of the ledger, where the ranks record how they ended.
    ranks : int
        Number of ranks that have to record it.
    """

    def __init__(
        self,
        command: list[str],
        env: dict[str, str],
        directory: Path,
        ranks: int,
        events: Events,
        screen: PlainScreen,
    ) -> None:
        self._command = command
        self._env = env
        self._directory = directory
        self._ranks = ranks
        self._events = events
        self._screen = screen
        self._number = int(env["FTRT_ATTEMPT"])
        self._suspicions = Suspicions()
        self.output = Output(screen.out, screen.err)
        self.records: dict[int, dict[str, Any]] = {}

    def run(self, stop: Stop) -> Verdict:
        """Start, follow and tear down; the verdict of a stopped attempt is 'failed'."""
        self._directory.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its group can be signalled without us in it
        )
        try:
            if process.stdout is not None and process.stderr is not None:
                self.output.follow(process.stdout, process.stderr)
            verdict = self._follow(process, stop)
            self._wait(process, GRACE_S)
        finally:
            self._tear_down(process)
        self._show_events()  # and the output was read to its end
        return verdict if stop.signum else self._with_reason(self._judge(ended=True))

    def _follow(self, process: subprocess.Popen[str], stop: Stop) -> Verdict:
        """Return once the attempt is decided, told to stop, or without an mpirun."""
        while True:
            ended = process.poll() is not None
            self._show_events()
            verdict = self._judge(ended)
            if stop.signum:
                _signal_group(process, stop.signum)
                return Verdict("failed", f"stopped by {signal.Signals(stop.signum).name}")
            if verdict.kind != "running":
                return verdict
            time.sleep(_POLL_S)

    def _judge(self, ended: bool) -> Verdict:
        self.records = read_ranks(self._directory, self._ranks)
        verdict = judge(self.records, self._ranks, ended)
        raised_early = ended and not self.records and self.output.tracebacks.shown
        if verdict.kind == "failed" and raised_early:
            reason = "the program raised before it had joined the job"
            return Verdict("error", reason, raised_early[0])
        return verdict

    def _show_events(self) -> None:
        new = self._events.new(self._number)
        for event in self._suspicions.pass_on(new, time.monotonic()):
            self._screen.event(event)
        counts = Counter(event.get("event") for event in self._events.seen)
        self._screen.progress(
            f"attempt {self._number}, faults: {counts['fault']}, recoveries: {counts['recovery']}, "
            f"{len(self.records)} of {self._ranks} ranks ended"
        )

    def _with_reason(self, verdict: Verdict) -> Verdict:
        """The host's agent knows best why nothing could be repaired."""
        for event in self._events.seen:
            known = event.get("event") == "failed" and event.get("attempt") == self._number
            if verdict.kind == "failed" and known and event.get("reason"):
                return Verdict("failed", str(event["reason"]))
        return verdict

    def _wait(self, process: subprocess.Popen[str], timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)

    def _tear_down(self, process: subprocess.Popen[str]) -> None:
        _signal_group(process, signal.SIGKILL)
        self._wait(process, GRACE_S)
        leftovers.clean(self._env["FTRT_JOB"], self._directory, GRACE_S)
        self.output.join(1.0)


def _signal_group(process: subprocess.Popen[str], signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)
