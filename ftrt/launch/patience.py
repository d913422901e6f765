"""How long the launcher waits for whom, and the sentence for each wait that was in vain."""

from __future__ import annotations

import subprocess

from ftrt.launch import leftovers
from ftrt.launch.gauge import Gauge

#: Ranks that wait notice the end of their agent in a moment, and that it stands still in 10 s.
AGENT_ENDED_S = 5.0
AGENT_SILENT_S = 20.0


class AgentPatience:
    """Bears an agent that does nothing for as long as the ranks may still notice it themselves.

    A rank that computes, or is stopped itself, would not.
    """

    def __init__(self, agent: subprocess.Popen[bytes], gauge: Gauge) -> None:
        self._agent, self._gauge = agent, gauge
        self._beat = -1
        self._since_s: float | None = None
        self._ended = False

    def overdue(self, now_s: float) -> str:
        """Why the attempt cannot go on, at a monotonic time; empty while it may."""
        beat, ended = self._gauge.agent_beat, self._agent.poll() is not None
        if beat != self._beat or ended != self._ended or self._since_s is None:
            self._beat, self._ended, self._since_s = beat, ended, now_s
        waited_s = now_s - self._since_s
        what = ""
        if ended and waited_s > AGENT_ENDED_S:
            what = f"ended with status {self._agent.returncode}"
        elif not ended and beat >= 0 and waited_s > AGENT_SILENT_S:
            what = "stands still"
        if not what:
            return ""
        return (
            f"the host agent (pid {self._agent.pid}) {what}, and {waited_s:.0f} s later there are "
            "ranks that have not ended: they are ended by force; nothing that was committed is "
            "lost, `ftrt run --resume` goes on from the ledger"
        )


class TailPatience:
    """Bears what processes do after the job's work, for a time.

    Parameters
    ----------
    stopped_s, working_s : float
        How long a process may be stopped, and how long it may work on.
    """

    def __init__(self, stopped_s: float, working_s: float) -> None:
        self._stopped_s, self._working_s = stopped_s, working_s
        self._begin_s: float | None = None
        self._stopped: dict[int, float] = {}

    def overdue(self, processes: set[int], now_s: float) -> dict[int, str]:
        """Of ``processes``, which have to be ended at ``now_s``, each with what it did."""
        self._begin_s = now_s if self._begin_s is None else self._begin_s
        stopped = {pid for pid in processes if leftovers.is_stopped(pid)}
        self._stopped = {pid: self._stopped.get(pid, now_s) for pid in stopped}
        found = {
            pid: f"was stopped for {self._stopped_s:g} s (--evict-timeout-s)"
            for pid, since_s in self._stopped.items()
            if now_s - since_s > self._stopped_s
        }
        if now_s - self._begin_s > self._working_s:
            did = f"still ran {self._working_s:g} s (--stall-timeout-s)"
            found.update({pid: did for pid in processes if pid not in found})
        return found
