"""Suspicion and eviction: who stands still, and for how long that is forgiven."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ftrt.host.board import Board, Field, Phase
from ftrt.host.watch import Watch
from ftrt.runtime.config import Config
from ftrt.runtime.events import EventLog

_MOVING = (Phase.RUNNING,)
_NO_HEARTBEAT, _NO_PROGRESS = "no heartbeat", "no progress"


class Health:
    """Watches heartbeats (is the process scheduled?) and progress (does it get anywhere?).

    A heartbeat that stands still for ``suspect_timeout_s`` is noted and forgiven when it goes on;
    for ``evict_timeout_s`` it means replacement. A process that beats but makes no call into ftrt
    for ``stall_timeout_s`` while it says that it is running hangs, and is replaced as well; in a
    phase that it declared (:meth:`ftrt.Runtime.phase`) the limit is that phase's.
    """

    def __init__(
        self,
        config: Config,
        board: Board,
        watch: Watch,
        events: EventLog,
        ranks_of: Callable[[int], Iterable[int]],
    ):
        self._ranks_of = ranks_of
        self._config, self._board, self._watch, self._events = config, board, watch, events
        now = time.monotonic()
        self._beats = [(0, now)] * board.processes
        self._progress = [(0, now)] * board.processes
        self._suspects: set[int] = set()
        self._looked = now

    def overdue(self) -> list[tuple[int, str]]:
        """Processes to be replaced, each with the evidence."""
        now = time.monotonic()
        gap_s = now - self._looked
        late_s = gap_s if gap_s > 0.05 else 0.0  # the agent itself did not run: nobody's fault
        self._looked = now
        found = []
        for process in self._config.own:
            if self._board.get(process, Field.PHASE) in (Phase.FINISHED, Phase.RAISED):
                continue
            silent = self._silence(process, now, late_s)
            self._suspect(process, silent)
            if silent > self._config.evict_timeout_s:
                found.append((process, f"{_NO_HEARTBEAT} for {silent:.1f} s"))
            elif self._stalled(process, now) > (limit := self._stall_limit_s(process)):
                found.append((process, f"{_NO_PROGRESS} for {limit:g} s"))
        return found

    def detection(self, process: int, by: str) -> dict[str, object]:
        """What a record says of how a death was seen.

        Parameters
        ----------
        process : int
        by : str
            The evidence, as :meth:`overdue` words it, or whoever else says that it is gone.

        Returns
        -------
        dict
            ``layer``, the one that saw it first, and ``silent_ms``, the time since the last sign
            of life that this layer goes by, as old as the agent's last look at most.
        """
        layer, seen = by, self._beats
        if by.startswith(_NO_HEARTBEAT):
            layer = "heartbeat"
        elif by.startswith(_NO_PROGRESS):
            layer, seen = "progress", self._progress
        return {
            "layer": layer,
            "silent_ms": round((time.monotonic() - seen[process][1]) * 1e3, 3),
        }

    def _silence(self, process: int, now: float, late_s: float) -> float:
        beat, (last, since) = self._board.get(process, Field.BEAT), self._beats[process]
        if beat != last:
            self._beats[process] = (beat, now)
        elif late_s:
            self._beats[process] = (beat, min(now, since + late_s))
        return now - self._beats[process][1]

    def _suspect(self, process: int, silent: float) -> None:
        suspected = process in self._suspects
        if silent > self._config.suspect_timeout_s and not suspected:
            if self._watch.alive(process):
                self._suspects.add(process)
                self._tell("suspected", process, silent)
        elif suspected and silent < self._config.suspect_timeout_s:
            self._suspects.discard(process)
            self._tell("cleared", process, silent)

    def _tell(self, event: str, process: int, silent: float) -> None:
        rank = self._board.get(process, Field.RANK_PLUS_1) - 1
        self._events.write(
            event, process=process, rank=None if rank < 0 else rank, silent_s=round(silent, 3)
        )

    def _stall_limit_s(self, process: int) -> float:
        declared_ms = self._board.get(process, Field.STALL_LIMIT_MS)
        return declared_ms / 1e3 if declared_ms else self._config.stall_timeout_s

    def _stalled(self, process: int, now: float) -> float:
        rank = self._board.get(process, Field.RANK_PLUS_1) - 1
        moving = rank >= 0 and self._board.get(process, Field.PHASE) in _MOVING
        mark = self._board.get(process, Field.PROGRESS) + (
            sum(map(self._board.messages, self._ranks_of(process))) if rank >= 0 else 0
        )
        if mark != self._progress[process][0] or not moving:
            self._progress[process] = (mark, now)
        return now - self._progress[process][1]
