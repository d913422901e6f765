"""Faults from outside: signals to the processes of a job, found on its board."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ftrt.errors import FtrtError
from ftrt.host.board import Board, Field, Status, Word
from ftrt.host.words import job_directory
from ftrt.launch import leftovers
from ftrt.ledger.record import read_job
from ftrt.storm.plan import RESTARTS, Strike

_LOOK_S = 0.002


class Hunter:
    """Carries out the strikes of one job, one after the other, while it runs.

    Attributes
    ----------
    done : list of dict
        What was done: ``kind``, and the ``attempt`` and ``process`` that it hit.
    """

    def __init__(self, ledger: Path, strikes: tuple[Strike, ...]):
        self._ledger, self._strikes = ledger, strikes
        self.done: list[dict] = []
        self._over = threading.Event()
        self._job = ""
        self._attempt = 0
        self._board: Board | None = None
        self._thread = threading.Thread(target=self._hunt, name="ftrt-hunter", daemon=True)

    def __enter__(self) -> Hunter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _hunt(self) -> None:
        for strike in self._strikes:
            if not self._let_run(strike.after_s):
                return
            with contextlib.suppress(OSError, ValueError):  # what it was to hit is gone
                self._carry_out(strike)

    def _carry_out(self, strike: Strike) -> None:
        if strike.kind == "suspend":
            self._suspend(strike.gap_s)
        elif strike.kind == "agent":
            assert self._board is not None
            self._kill("agent", None, int(self._board.words[Word.AGENT_PID]))
        elif strike.kind == "mpirun":
            self._kill("mpirun", None, _parent(self._pid_of(self._process_of(strike.ranks[0]))))
        elif strike.kind == "spare":
            self._kill_process("spare", self._unused())
        else:
            self._kill_process(strike.kind, self._process_of(strike.ranks[0]))
            if strike.kind == "pair":
                time.sleep(strike.gap_s)
                self._kill_process(strike.kind, self._process_of(strike.ranks[1]))

    # -- whom ----------------------------------------------------------------------------------

    def _let_run(self, after_s: float) -> bool:
        """Wait until the job has run that long since the last strike; False once it is over."""
        since: float | None = None
        while not self._over.wait(_LOOK_S):
            if not self._is_running():
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= after_s:
                return True
        return False

    def _is_running(self) -> bool:
        if not self._job:
            with contextlib.suppress(FtrtError, OSError):
                self._job = read_job(self._ledger)["job"]
            return False
        runs = self._board is not None and self._board.status is Status.RUNNING
        if runs and job_directory(self._job, self._attempt).exists():
            return True
        self._look_for_board()
        return False

    def _look_for_board(self) -> None:
        self._board = None
        for attempt in range(RESTARTS + 1, 0, -1):
            path = job_directory(self._job, attempt) / "board"
            if path.exists():
                with contextlib.suppress(OSError, FtrtError):
                    self._board, self._attempt = Board(path), attempt
                return

    def _process_of(self, rank: int) -> int:
        """The process that acts for ``rank``, the latest if there were several."""
        return self._last(lambda board, process: board.get(process, Field.RANK_PLUS_1) == rank + 1)

    def _unused(self) -> int:
        return self._last(lambda board, process: board.get(process, Field.RANK_PLUS_1) == 0)

    def _last(self, fits: Callable[[Board, int], bool]) -> int:
        board = self._board
        assert board is not None
        found = [p for p in range(board.processes) if fits(board, p) and self._lives(p)]
        if not found:
            raise ValueError("nobody is there to be hit")
        return found[-1]

    def _pid_of(self, process: int) -> int:
        assert self._board is not None
        return self._board.get(process, Field.PID)

    def _lives(self, process: int) -> bool:
        pid = self._pid_of(process)
        return pid > 0 and leftovers.start_time(pid) is not None

    # -- what ----------------------------------------------------------------------------------

    def _kill_process(self, kind: str, process: int) -> None:
        self._kill(kind, process, self._pid_of(process))

    def _kill(self, kind: str, process: int | None, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.done.append({"kind": kind, "attempt": self._attempt, "process": process})

    def _suspend(self, for_s: float) -> None:
        """Stop all that belongs to the job, as a batch system does, and let it go on."""
        pids = leftovers.of_job(self._job)
        try:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(for_s)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self.done.append({"kind": "suspend", "attempt": self._attempt, "process": None})


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
