"""The fault-free sweep: everybody's words to everybody in log2(n) rounds of messages.

A dissemination (Bruck et al., IEEE TPDS 8, 1997): in round k each member passes on all that it
has to the member 2^k before it. Whoever returns has the words of all members. It is not uniform:
when somebody dies in it some return and others raise. :mod:`ftrt.hosts.meeting` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ftrt.errors import DeadlineExceeded, PeerFailed, UsageError

if TYPE_CHECKING:
    from ftrt.mpi import Wire

_HEAD = 2
#: Tests of a request between two looks, less one.
_LOOK = 511


class Sweep:
    """One member's part in the sweeps of a group.

    Parameters
    ----------
    wire : Wire
    processes : sequence of int
        Processes of the members, in the same order everywhere.
    capacity : int
        Most 64-bit words that a member brings.
    tag : int
        Of the group's own.
    """

    def __init__(self, wire: Wire, processes: Sequence[int], capacity: int, tag: int) -> None:
        if wire.process not in processes or len(set(processes)) != len(processes):
            raise UsageError(f"process {wire.process} is not once in the group {list(processes)}")
        self._wire, self._tag = wire, tag
        self.me, self.members = list(processes).index(wire.process), len(processes)
        self.capacity, self.broken, self._number = capacity, False, 0
        # Block i is of the member i behind us; a round's blocks lie together.
        self._blocks = np.zeros((self.members, _HEAD + capacity), np.uint64)
        self._rounds = []
        step = 1
        while step < self.members:
            count = min(step, self.members - step)
            to = processes[(self.me - step) % self.members]
            source = processes[(self.me + step) % self.members]
            parts = self._blocks[:count], self._blocks[step : step + count]
            self._rounds.append((*parts, to, source))
            step *= 2

    def gather(
        self,
        payload: np.ndarray,
        number: int,
        timeout_s: float = 10.0,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Bring words and have those of all members, which :meth:`of` gives.

        Parameters
        ----------
        payload : ndarray of uint64, 1-d
        number : int
            The same at every member, and another one each time.
        timeout_s : float
        look : callable
            Called now and then while others are late; it may raise.

        Raises
        ------
        PeerFailed, DeadlineExceeded
            A member is gone, late, or brought words of another number. The group is given up:
            :attr:`broken` is true, others may have returned.
        """
        length = len(payload)
        if length > self.capacity:
            raise UsageError(f"{length} words do not fit: this group has {self.capacity}")
        if self.broken:
            raise PeerFailed(f"this group of {self.members} was given up before sweep {number}")
        own = self._blocks[0]
        own[0], own[1] = number, length
        own[_HEAD : _HEAD + length] = payload
        self._number, self.broken = number, True
        wire, tag = self._wire, self._tag
        deadline = time.monotonic() + timeout_s
        for mine, theirs, to, source in self._rounds:
            receives, sends = [wire.receive(theirs, source, tag)], []
            try:
                sends.append(wire.send(mine, to, tag))
                self._finish(receives[0], deadline, look)
                self._finish(sends[0], deadline, look)
            except BaseException:
                wire.retire(receives, sends, self._blocks)  # MPI may write there still
                raise
        if (self._blocks[:, 0] != number).any():
            raise PeerFailed(f"sweep {number} brought words of {set(self._blocks[:, 0].tolist())}")
        self.broken = False

    def _finish(self, request, deadline: float, look: Callable[[], object]) -> None:
        done, tries = self._wire.done, 0
        while not done(request):
            tries += 1
            if tries & _LOOK == 0:
                look()
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"sweep {self._number} of {self.members} members did not end at {self.me}"
                    )

    def of(self, member: int) -> np.ndarray:
        """What a member brought to the last sweep, valid until the next."""
        block = self._blocks[(member - self.me) % self.members]
        return block[_HEAD : _HEAD + int(block[1])]


def as_words(data: bytes) -> np.ndarray:
    """Bytes behind their length, as words that a sweep or a gathering takes."""
    return np.frombuffer(len(data).to_bytes(8, "little") + data + bytes(-len(data) % 8), np.uint64)


def as_bytes(words: np.ndarray) -> bytes:
    """Return the bytes that `as_words` was given."""
    return words[1:].tobytes()[: int(words[0])]
