"""Runs real jobs over test hosts, each with a hard time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from namespaces import Hosts

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from runtime_job import ROOT, Ended


class Job:
    """``ftrt run`` on one of some test hosts, by default on the first.

    Parameters
    ----------
    hosts : Hosts
    options : list
        Of ``ftrt run``.
    """

    def __init__(self, hosts: Hosts, options: list, program, *arguments, env=None, where=0):
        self.program = [program, *arguments]
        self._host = hosts[where]
        self.ledger = hosts.outside / "ledger"
        self._report = hosts.outside / "report.json"
        words = [sys.executable, "-m", "ftrt.cli", "run", "--hosts", hosts.names]
        words += ["--ledger", hosts.shared / "ledger", "--json", hosts.shared / "report.json"]
        words += [*options, program, *arguments]
        environment = {**os.environ, **hosts.environment, "PYTHONPATH": str(ROOT), **(env or {})}
        self._process = subprocess.Popen(
            hosts[where].command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment,
        )

    def signal(self, signum: int) -> None:
        """Send a signal to the launcher itself."""
        self._host.run("pkill", f"-{int(signum)}", "-f", "ftrt.cli run --hosts")

    def await_event(self, event: str, limit_s: float = 30.0) -> dict:
        """The first event of a kind, once it is there."""
        end = time.monotonic() + limit_s
        while True:
            found = Ended(0, "", self.ledger).named(event) if self.ledger.exists() else []
            if found:
                return found[0]
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < end, f"no event {event!r} within {limit_s} s"
            time.sleep(0.02)

    def await_epoch(self, epoch: int, limit_s: float = 40.0) -> None:
        """Return once the record of an epoch is there."""
        end = time.monotonic() + limit_s
        while not (self.ledger / "epochs" / f"{epoch:06d}.json").exists():
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < end, f"no epoch {epoch} within {limit_s} s"
            time.sleep(0.005)

    def await_effects(self, directory: Path, count: int, limit_s: float = 40.0) -> None:
        """Return once the program has recorded so many effects there."""
        end = time.monotonic() + limit_s
        while effects(directory) < count:
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < end, f"no {count} effects within {limit_s} s"
            time.sleep(0.02)

    def end(self, limit_s: float = 60.0) -> Ended:
        """Wait for the end; killed after the limit."""
        try:
            output, _ = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            output, _ = self._process.communicate(timeout=20)
            logs = (self.ledger / "run").rglob("agent*.log")
            said = "\n".join(f"{log.name}: {log.read_text()}" for log in logs)
            raise AssertionError(f"no end within {limit_s} s:\n{output}\n{said}") from None
        report = json.loads(self._report.read_text()) if self._report.exists() else {}
        return Ended(self._process.returncode, output, self.ledger, report)


def effects(directory: Path) -> int:
    """How many effects all incarnations have recorded."""
    paths = directory.glob("effects-*.txt") if directory.exists() else ()
    return sum(path.read_text().count("C ") for path in paths)


def left_behind(hosts: Hosts, limit_s: float = 5.0) -> list[str]:
    """What a job left on its hosts: shared memory, and processes; agents get a moment to end."""
    end = time.monotonic() + limit_s
    while (left := _left(hosts)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _left(hosts: Hosts) -> list[str]:
    left = []
    for host in hosts:
        if host.alive:
            found = host.run("ls", "/dev/shm").split()
            left += [f"{host.name}: /dev/shm/{name}" for name in found]
            lines = host.run("ps", "-e", "-o", "args=").splitlines()
            left += [
                f"{host.name}: {line}" for line in lines if "python" in line and "ftrt" in line
            ]
    return [line for line in left if "first_process" not in line and "cached_fs" not in line]
