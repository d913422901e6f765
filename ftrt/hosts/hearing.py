"""How long nothing was heard of each host, by a clock that runs only while we listen."""

from __future__ import annotations

from ftrt.hosts.mesh import HEAD, Mesh
from ftrt.runtime.config import Config

#: A host's silence is noted after this time, or the suspect time-out if that is longer.
_NOTED_S = 0.5
#: A step of the clock counts at most so much: when we did not run, nobody was silent.
_STEP_S = 0.1


class Hearing:
    """Silence of the other hosts, in three limits.

    Noted; *overdue* at half the evict time-out: both sides of a cut let no commit happen from then
    on; *lost* at the evict time-out: the side of the head may go on without the other, whose last
    commit lies half a time-out back.
    """

    def __init__(self, config: Config) -> None:
        self._noted_s = max(_NOTED_S, config.suspect_timeout_s)
        self._lost_s = config.evict_timeout_s
        self._silent_s = {h: 0.0 for h in range(len(config.hosts)) if h != config.host}
        self._was_noted: set[int] = set()
        self._last_s: float | None = None

    def heard(self, host: int) -> None:
        """Something came from a host."""
        self._silent_s[host] = 0.0

    def step(self, now_s: float, mesh: Mesh) -> None:
        """Let the clock run on to a monotonic time."""
        past_s = 0.0 if self._last_s is None else min(now_s - self._last_s, _STEP_S)
        self._last_s = now_s
        for host in self._silent_s:
            self._silent_s[host] += past_s
            self._silent_s[host] = min(self._silent_s[host], mesh.silence_s(host, now_s))

    def silent_s(self, host: int) -> float:
        """How long nothing came from a host."""
        return self._silent_s[host]

    def change(self, host: int) -> str:
        """``silent`` or ``heard`` where that has just begun, else nothing."""
        silent = self._silent_s[host] > self._noted_s
        if silent == (host in self._was_noted):
            return ""
        (self._was_noted.add if silent else self._was_noted.discard)(host)
        return "silent" if silent else "heard"

    @property
    def uneasy(self) -> bool:
        """Whether the silence of some host was noted."""
        return bool(self._was_noted)

    def is_overdue(self, host: int) -> bool:
        """Whether nothing may be committed before it is known what became of a host."""
        return self._silent_s[host] > self._lost_s / 2

    def is_lost(self, host: int) -> bool:
        """Whether the others may go on without a host."""
        return self._silent_s[host] > self._lost_s

    def hears(self, host: int = HEAD) -> bool:
        """Whether a host was heard lately enough to speak for it."""
        return not self.is_overdue(host)
