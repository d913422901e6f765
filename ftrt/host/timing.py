"""Where the time of a recovery goes: its phases, from the death to the first new consumption.

The agent knows when it decided, the process that took over when it got on. That one leaves its
times on the board, each once; all are of the monotonic clock, which the processes of a host share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ftrt.host.board import Board, Field
from ftrt.runtime.events import EventLog

#: A program may compute for long before it consumes: its recovery is told without that time then.
_LONGEST_S = 1.0

#: What the agent does. *detect* begins with the death, or with the last sign of life where only
#: that is known; *revoke* closes the ledgers, so that the epoch takes no commit any more; *agree*
#: finds whose marks count and who takes over; *claim* creates the record and publishes the epoch.
DECISION = ("detect", "revoke", "agree", "claim")

#: What the process does that took over. *rebuild* ends when ``ftrt.init()`` returns, *restore* with
#: the state, *resend* when a missing message is at hand (a sender: is sent again), *first* with the
#: first new consumption committed or new message recorded.
TAKE_OVER = ("rebuild", "restore", "resend", "first")

PHASES = (*DECISION, *TAKE_OVER)

_ENDS = (Field.REBUILT, Field.RESTORED, Field.RESENT, Field.FIRST)


class Stages:
    """The times of one process that took over a rank, left on the board by itself.

    Parameters
    ----------
    board : Board
    process : int
        This process.
    """

    __slots__ = ("_board", "_process", "open")

    def __init__(self, board: Board, process: int):
        self._board, self._process = board, process
        self.open = True

    def end(self, end: Field) -> None:
        """Leave the time of now as the end of a phase, unless it has one."""
        if self.open and not self._board.get(self._process, end):
            self._board.put(self._process, end, time.monotonic_ns())
            self.open = end is not Field.FIRST


def strike_time(board: Board, process: int) -> None:
    """Leave on the board that ``process`` is about to end, for a death that is ordered."""
    board.put(process, Field.STRUCK, time.monotonic_ns())


def death_ns(board: Board, process: int) -> int:
    """When a process died, as far as it is known: ordered, or its last heartbeat; 0 if neither."""
    return board.get(process, Field.STRUCK) or board.get(process, Field.BEAT)


class RecoveryTimes:
    """The phases of one recovery as they end.

    Parameters
    ----------
    begin_s : float
        When what it heals happened, on the monotonic clock.
    detected : dict
        What is told with them.
    """

    def __init__(self, begin_s: float, detected: dict[str, Any]):
        self.detected = detected
        self.ended_s = begin_s
        self.phases_ms: dict[str, float] = {}
        self.epoch = 0
        self.promoted: list[int] = []
        self.due_s = 0.0

    def end(self, phase: str, at_s: float) -> None:
        """End a phase; one whose time came before that of another took nothing."""
        self.phases_ms[phase] = round(max(0.0, at_s - self.ended_s) * 1e3, 3)
        self.ended_s = max(self.ended_s, at_s)

    def add_take_over(self, board: Board) -> None:
        """Add what those left who took over; the last of them counts."""
        for phase, end in zip(TAKE_OVER, _ENDS, strict=True):
            if ends := [ns for ns in self._ends_ns(board, end) if ns]:
                self.end(phase, max(ends) / 1e9)

    def is_over(self, board: Board) -> bool:
        """Whether all who took over have come to their first new message."""
        return all(self._ends_ns(board, Field.FIRST))

    def _ends_ns(self, board: Board, end: Field) -> list[int]:
        return [board.get(process, end) for process in self.promoted]


class Timekeeper:
    """Times the recoveries of a host's agent and tells of each one as a whole.

    A recovery is told once those who took over have left their times, after a second with what is
    known, and before anything follows that ends it.
    """

    def __init__(self, events: EventLog, board: Board):
        self._events, self._board = events, board
        self._now: RecoveryTimes | None = None
        self._untold: RecoveryTimes | None = None

    def begin(self, began_ns: int = 0, **detected: Any) -> None:
        """Begin with what happened at a time, by default now; this moment ends its detection."""
        self.tell_later()
        now_s = time.monotonic()
        self._now = RecoveryTimes(min(began_ns / 1e9 or now_s, now_s), detected)
        if began_ns:
            self._now.end("detect", now_s)

    def end(self, phase: str) -> None:
        """End a phase of the recovery that is under way, if one is."""
        if self._now is not None:
            self._now.end(phase, time.monotonic())

    def promoted(self, process: int) -> None:
        """Note a process of this host that takes over."""
        if self._now is not None:
            self._now.promoted.append(process)

    def decided(self, epoch: int) -> None:
        """Have the recovery under way told as that which led to ``epoch``."""
        done, self._now = self._now, None
        if done is None:
            return
        done.epoch, done.due_s = epoch, time.monotonic() + _LONGEST_S
        self._untold = done
        if not done.promoted:
            self.tell()

    def tick(self) -> None:
        """Tell of a recovery that is complete, or of which no more can be waited for."""
        untold = self._untold
        if untold is not None and (untold.is_over(self._board) or time.monotonic() > untold.due_s):
            self.tell()

    def tell(self) -> None:
        """Tell what is known of a recovery that was not told yet."""
        self.tell_later()
        self._events.flush()

    def tell_later(self) -> None:
        """:meth:`tell` when the events are written the next time."""
        untold, self._untold = self._untold, None
        if untold is None:
            return
        untold.add_take_over(self._board)
        self._events.write_later(
            "recovery",
            t=self._events.since_start_s(untold.ended_s),
            epoch=untold.epoch,
            phases_ms=untold.phases_ms,
            **untold.detected,
        )


def decision_ms(phases_ms: Mapping[str, float]) -> float:
    """From the detection of a death to the publication of the epoch without it."""
    return sum(phases_ms.get(name, 0.0) for name in DECISION[1:])


def after_publication_ms(phases_ms: Mapping[str, float]) -> float:
    """From the publication of the epoch to the end of what is known."""
    return sum(phases_ms.get(name, 0.0) for name in TAKE_OVER)
