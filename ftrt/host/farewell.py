"""How an attempt's processes go: waited for with a limit, ended by force, spoken for when dead."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ftrt.agree.epoch import Membership
from ftrt.errors import LedgerError
from ftrt.host.board import Board, Field, Status, Word
from ftrt.host.watch import Watch
from ftrt.ledger.sync import sync_for
from ftrt.runtime import ending
from ftrt.runtime.config import Config


class Farewell:
    """Sees the processes of an attempt off; its status is final by now.

    Parameters
    ----------
    config : Config
    board : Board
    watch : Watch
    members : Membership or None
        Who has which rank; None if the attempt never got that far.
    meanwhile : callable
        Called now and then.
    """

    def __init__(
        self,
        config: Config,
        board: Board,
        watch: Watch,
        members: Membership | None,
        meanwhile: Callable[[], None],
    ):
        self._meanwhile = meanwhile
        self._config, self._board, self._watch = config, board, watch
        self._members = members
        self._ended = board.status is Status.ENDED
        self._beats: dict[int, tuple[int, float]] = {}
        self._forced: set[int] = set()

    def wait(self, grace_s: float) -> None:
        """Wait until everybody is gone or works on by itself; end whoever takes too long.

        That is ``grace_s``, but the stall time-out for a rank whose heart beats: it may sync.
        """
        begin = time.monotonic()
        while left := [p for p in self._config.own if self._must_leave(p)]:
            now = time.monotonic()
            for process in left:
                patience_s = grace_s
                if self._works(process) and self._silence_s(process, now) < grace_s:
                    patience_s = max(grace_s, self._config.stall_timeout_s)
                if now - begin >= patience_s:
                    self._end(process, patience_s)
            self._board.words[Word.AGENT_BEAT] += 1
            self._board.ring_all()
            self._meanwhile()
            time.sleep(0.01)

    def vouch(self, epoch: int) -> None:
        """All work was complete: say so for ranks that died before they could."""
        for rank, process in self._members.members if self._members else ():
            if self._config.host_of(process) != self._config.host:
                continue
            if ending.has_reported(self._config, rank):
                continue
            try:
                if self._config.durable:
                    sync_for(self._config.ledger, epoch, rank)
            except (OSError, LedgerError) as error:
                ending.report(
                    self._config, rank, "failed", f"it died before its last sync: {error}"
                )
            else:
                ending.report(self._config, rank, "done")

    def _rank(self, process: int) -> int | None:
        ranks = self._members.ranks_of(process) if self._members else ()
        return ranks[0] if ranks else None

    def _must_leave(self, process: int) -> bool:
        """False once it is gone, or while it works on after the job's end: that is its own."""
        rank = self._rank(process)
        works_on = self._ended and rank is not None and ending.has_reported(self._config, rank)
        return not works_on and process not in self._forced and self._watch.alive(process)

    def _works(self, process: int) -> bool:
        return self._ended and self._rank(process) is not None

    def _silence_s(self, process: int, now: float) -> float:
        beat = self._board.get(process, Field.BEAT)
        if beat != self._beats.get(process, (None, now))[0]:
            self._beats[process] = beat, now
        return now - self._beats[process][1]

    def _end(self, process: int, after_s: float) -> None:
        self._forced.add(process)
        self._watch.send(process, signal.SIGKILL)
        rank = self._rank(process)
        overdue = self._works(process) and after_s >= self._config.stall_timeout_s
        if rank is not None and overdue and self._config.durable:
            ending.report(
                self._config,
                rank,
                "failed",
                f"its last sync did not end within {after_s:g} s (--stall-timeout-s), so what it "
                "committed last may not survive a power cut; nothing that was durable is lost. "
                f"Check the disk of {self._config.ledger}, then go on with --resume",
            )
