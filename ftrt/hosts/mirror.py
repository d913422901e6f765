"""Shows on a host's board what the boards of the other hosts say of their processes.

What a rank asks the board about a process works the same wherever that runs: whether it lives,
whether it is done, how far its rank is. The other agents tell, twenty times a second.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from ftrt import atomics
from ftrt.host.board import Board, Field, Phase, Status, Word
from ftrt.host.words import CUTS, DONE, MESSAGES, TOTAL
from ftrt.runtime.config import Config

#: Stands for the thread that holds the mutex of a process on another host.
_SOMEBODY = 1
#: What is told of each process.
_TOLD = (Field.COMM, Field.PID, Field.PHASE)


class Mirror:
    """What one agent tells the others of its board, and what it shows there of theirs.

    Attributes
    ----------
    ready : bool
        Whether all processes of this host have registered.
    ready_hosts, over_hosts : set of int
        Hosts whose processes have registered, and whose part in the attempt is over.
    """

    def __init__(self, config: Config, board: Board) -> None:
        self._config, self._board = config, board
        self.ready = False
        self.ready_hosts: set[int] = {config.host}
        self.over_hosts: set[int] = set()
        self._links = [n for n, fault in enumerate(config.faults) if fault["kind"] == "link"]

    def gossip(
        self,
        epoch: int,
        dead: Collection[int],
        *,
        status: Status,
        over: bool,
        fenced: bool,
        reason: str,
    ) -> dict[str, Any]:
        """A message with all that others need to know of this host."""
        board, own = self._board, self._config.own
        ranks = [board.get(process, Field.RANK_PLUS_1) - 1 for process in own]
        words = board.words
        return {
            "k": "gossip",
            "e": epoch,
            "s": int(status),
            "fenced": fenced,
            "over": over,
            "why": reason,
            "ready": self.ready,
            "p": [[p, *(board.get(p, f) for f in _TOLD)] for p in own],
            "d": [process for process in own if process in dead],
            "m": [
                [r, int(words[MESSAGES + r]), int(words[DONE + r]), int(words[TOTAL + r])]
                for r, process in zip(ranks, own, strict=True)
                if r >= 0 and process not in dead
            ],
            "shrink": atomics.load(words, int(Word.SHRINK)),
            "cuts": self._cuts(),
        }

    def _cuts(self) -> list[list[int]]:
        """Links that are cut by a fault, each with the milliseconds that are left."""
        now = time.monotonic_ns()
        left = [(n, int(self._board.words[CUTS + n]) - now) for n in self._links]
        return [[n, left_ns // 1_000_000] for n, left_ns in left if left_ns > 1_000_000]

    def show(self, host: int, message: dict[str, Any]) -> None:
        """Put on our board what another agent tells."""
        board, words = self._board, self._board.words
        if message["ready"]:
            self.ready_hosts.add(host)
        if message["over"]:
            self.over_hosts.add(host)
        gone = set(message["d"])
        for process, *values in message["p"]:
            for field, value in zip(_TOLD, values, strict=True):
                board.put(process, field, value)
            if process in gone:
                self.show_dead(process)
            elif not board.get(process, Field.OWNER):
                board.put(process, Field.MUTEX, _SOMEBODY)
                board.put(process, Field.OWNER, _SOMEBODY)
        for rank, messages, done, total in message["m"]:
            words[MESSAGES + rank], words[DONE + rank] = messages, done
            words[TOTAL + rank] = total
        self._show_shrink(int(message["shrink"]))
        for number, left_ms in message["cuts"]:
            index = CUTS + number
            until = time.monotonic_ns() + left_ms * 1_000_000
            if not int(words[index]):
                atomics.store(words, index, until)

    def _show_shrink(self, word: int) -> None:
        """Whoever is ahead in shrinking MPI's world takes the others along."""
        words, at = self._board.words, int(Word.SHRINK)
        while (mine := int(atomics.load(words, at))) < word:
            atomics.swap_if(words, at, mine, word)
            self._board.ring_all()

    def show_dead(self, process: int) -> None:
        """A process of another host is gone: no message is begun to it any more."""
        if process in self._config.own:
            return
        self._board.put(process, Field.OWNER, _SOMEBODY)
        self._board.put(process, Field.MUTEX, 0)
        if self._board.get(process, Field.PHASE) < Phase.RUNNING:
            self._board.put(process, Field.PHASE, Phase.ABSENT)
