"""The fault-free sweep: everybody's words to everybody in log2(n) rounds of messages.

A dissemination (Bruck et al., IEEE TPDS 8, 1997): in round k each member passes on all that it
has to the member 2^k before it. Whoever returns has the words of all members. It is not uniform:
when somebody dies in it some return and others raise, and then :mod:`ftrt.hosts.meeting` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ftrt.errors import DeadlineExceeded, InvariantBroken, UsageError

if TYPE_CHECKING:
    from ftrt.mpi import Wire

_HEAD = 2


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
        self.capacity, self.number = capacity, 0
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
        timeout_s: float = 10.0,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Bring words and have those of all members, which :meth:`of` gives.

        Parameters
        ----------
        payload : ndarray of uint64, 1-d
        timeout_s : float
        look : callable
            Called now and then while others are late; it may raise.

        Raises
        ------
        PeerFailed, DeadlineExceeded
            A member is gone or late. The group must be given up: others may have returned.
        """
        length = len(payload)
        if length > self.capacity:
            raise UsageError(f"{length} words do not fit: this group has {self.capacity}")
        self.number += 1
        own = self._blocks[0]
        own[0], own[1] = self.number, length
        own[_HEAD : _HEAD + length] = payload
        wire, tag = self._wire, self._tag
        deadline = time.monotonic() + timeout_s
        for mine, theirs, to, source in self._rounds:
            receive = wire.receive(theirs, source, tag)
            send = wire.send(mine, to, tag)
            self._finish(receive, deadline, look)
            self._finish(send, deadline, look)
        if (self._blocks[:, 0] != self.number).any():
            raise InvariantBroken(f"sweep {self.number} brought words of {self._blocks[:, 0]}")

    def _finish(self, request, deadline: float, look: Callable[[], object]) -> None:
        done, tries = self._wire.done, 0
        while not done(request):
            tries += 1
            if tries & 1023 == 0:
                look()
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"sweep {self.number} of {self.members} members did not end at {self.me}"
                    )

    def of(self, member: int) -> np.ndarray:
        """What a member brought to the last sweep, valid until the next."""
        block = self._blocks[(member - self.me) % self.members]
        return block[_HEAD : _HEAD + int(block[1])]
