"""Uniform agreement of the processes of one host, each of which brings words of its own (marks).

Everybody stores its words, then its arrival. Who sees that every member has arrived or is gone
proposes those that arrived and are not gone, with one compare-and-swap on a word that all share:
the first wins, the others take what it proposed. So whoever learns an outcome learns the same
one, also if its proposer died in the next instruction. Who is gone is for the detector to say
(:meth:`Gathering.lost`); if it was wrong, the one that lives finds itself left out.

Words and proposals have two places, for even and odd rounds. A place is written again two rounds
later, when every member of the round between has arrived there and has read what it needed. One
that was left out meanwhile may find it overwritten; it learns then that it is fenced.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit, types

from ftrt.atomics import compare_exchange, fence, load_acquire, store, store_release
from ftrt.errors import DeadlineExceeded, Fenced, InvariantBroken, UsageError
from ftrt.transport.direct import ADDRESS, direct, place, state_at, words_at

_MAGIC, _VERSION = 0x4654_5254_4741_5448, 1
_MOST = 1 << 14
_LINE = 8
_HEADER, _DECISION = 4 * _LINE, 2 * _LINE
_DECIDED, _WAITING, _FENCED = 0, 1, 2
#: Looks of one call of the kernel, after which Python sees to the deadline.
_LOOKS = 256
_BUSY = 4000
_DTYPE = np.dtype(np.uint64)

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@njit("int64(int64)", cache=True)
def _lines(words):
    return (words + 7) // 8 * 8


@njit("int64(int64, int64, int64)", cache=True)
def _entry(members, capacity, member):
    """First word of a member: a line each for arrived and gone, two proposals, two slots."""
    size = 16 + 2 * _lines((members + 63) // 64) + 2 * _lines(2 + capacity)
    return 32 + member * size


@njit("int64(int64, int64, int64)", cache=True)
def _proposal(members, at, number):
    return at + 16 + (number & 1) * _lines((members + 63) // 64)


@njit("int64(int64, int64, int64, int64)", cache=True)
def _slot(members, capacity, at, number):
    return at + 16 + 2 * _lines((members + 63) // 64) + (number & 1) * _lines(2 + capacity)


@njit("void(uint64[::1], int64, int64, int64, int64, uint64[::1])", nogil=True, cache=True)
def _arrive(words, members, capacity, me, number, payload):
    at = _entry(members, capacity, me)
    slot = _slot(members, capacity, at, number)
    store_release(words, slot, 0)
    fence()
    words[slot + 1] = len(payload)
    for i in range(len(payload)):
        words[slot + 2 + i] = payload[i]
    store_release(words, slot, number)
    store_release(words, at, number)
    fence()  # our arrival is seen before we look who else has arrived: the last one sees all


@njit("boolean(uint64[::1], int64, int64, int64, int64, uint64[::1])", nogil=True, cache=True)
def _propose(words, members, capacity, me, number, present):
    """Write a proposal once everybody has arrived or is gone; False until then."""
    mine = _proposal(members, _entry(members, capacity, me), number)
    for first in range(0, members, 64):
        chosen = np.uint64(0)
        for bit in range(min(64, members - first)):
            one = np.uint64(1) << np.uint64(bit)
            if present[first >> 6] & one == 0:
                continue
            at = _entry(members, capacity, first + bit)
            if load_acquire(words, at + 8) != 0:
                continue
            if load_acquire(words, at) != np.uint64(number):
                return False
            chosen |= one
        words[mine + (first >> 6)] = chosen
    return True


@njit(
    "int64(uint64[::1], int64, int64, int64, int64, uint64[::1], int64, int64)",
    nogil=True,
    cache=True,
)
def _await(words, members, capacity, me, number, present, busy, looks):
    """Decide, or wait until somebody has; give up after a number of looks."""
    for look in range(busy + looks):
        decision = load_acquire(words, 16)
        decided = np.int64(decision >> np.uint64(16))
        if decided > number:
            return _FENCED
        if decided == number:
            return _DECIDED
        if look & 15 == 0 and _propose(words, members, capacity, me, number, present):
            mine = np.uint64(number) << np.uint64(16) | np.uint64(me)
            compare_exchange(words, 16, decision, mine)
            continue
        if look >= busy:
            _sched_yield()
    return _WAITING


@njit(
    "int64(uint64[::1], int64, int64, int64, int64, uint64[::1], uint64[::1], uint64[::1])",
    nogil=True,
    cache=True,
)
def _collect(words, members, capacity, me, number, present, out, lengths):
    """Read who is in, and what each of them brought; all of it is this round's, or we are out."""
    decision = load_acquire(words, 16)
    if np.int64(decision >> np.uint64(16)) != number:
        return _FENCED
    winner = np.int64(decision & np.uint64(0xFFFF))
    proposal = _proposal(members, _entry(members, capacity, winner), number)
    for i in range((members + 63) // 64):
        present[i] = words[proposal + i]
    for member in range(members):
        lengths[member] = 0
        if present[member >> 6] >> np.uint64(member & 63) & np.uint64(1) == 0:
            continue
        slot = _slot(members, capacity, _entry(members, capacity, member), number)
        length = min(np.int64(words[slot + 1]), capacity)
        for i in range(length):
            out[member * capacity + i] = words[slot + 2 + i]
        fence()
        if load_acquire(words, slot) != np.uint64(number):
            return _FENCED
        lengths[member] = length
    fence()
    if np.int64(load_acquire(words, 16) >> np.uint64(16)) != number:
        return _FENCED
    inside = present[me >> 6] >> np.uint64(me & 63) & np.uint64(1)
    return _DECIDED if inside != 0 else _FENCED


# Words of what a call needs beside the round and what is brought.
_WORDS, _SIZE, _MEMBERS, _CAPACITY, _ME, _PRESENT, _OUT, _LENGTHS, _BUSY_LOOKS = range(9)


@njit(types.int64(ADDRESS, ADDRESS, types.int64, types.int64), nogil=True, cache=True)
def _agree(call, payload, length, number):
    """All of a round in one call, as far as it gets; a length below 0 if we have arrived before."""
    head = state_at(place(call), 9)
    members, capacity, me = head[_MEMBERS], head[_CAPACITY], head[_ME]
    words = words_at(head[_WORDS], head[_SIZE])
    present = words_at(head[_PRESENT], (members + 63) // 64)
    busy = np.int64(0)
    if length >= 0:
        busy = head[_BUSY_LOOKS]
        _arrive(words, members, capacity, me, number, words_at(place(payload), length))
    code = _await(words, members, capacity, me, number, present, busy, _LOOKS)
    if code != _DECIDED:
        return code
    out = words_at(head[_OUT], members * capacity)
    lengths = words_at(head[_LENGTHS], members)
    return _collect(words, members, capacity, me, number, present, out, lengths)


_agree_directly = direct(_agree)


class Gathering:
    """One process's part in the agreements of a host.

    Parameters
    ----------
    path : Path
        What :meth:`create` made, in shared memory.
    me : int
        Number of this process, from 0 on.
    """

    def __init__(self, path: Path, me: int) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self.words = np.frombuffer(self._map, np.uint64)
        if self.words[0] != _MAGIC or self.words[1] != _VERSION:
            raise InvariantBroken(f"{path} is no gathering of this version of ftrt")
        self.members, self.capacity = int(self.words[2]), int(self.words[3])
        if not 0 <= me < self.members:
            raise UsageError(f"member {me} of {path}: use 0 to {self.members - 1}")
        self.me, self.round, self._came = me, 0, 0
        self._present = _everybody(self.members)
        self._out = np.zeros((self.members, self.capacity), np.uint64)
        self._lengths = np.zeros(self.members, np.uint64)
        crowded = self.members > len(os.sched_getaffinity(0))
        arrays = (self._present, self._out, self._lengths)
        places = [array.ctypes.data for array in arrays]
        head = [self.words.ctypes.data, len(self.words), self.members, self.capacity, me]
        self._call = np.array([*head, *places, 0 if crowded else _BUSY], np.int64)

    @classmethod
    def create(cls, path: Path, members: int, capacity: int) -> None:
        """Make the shared memory of a gathering, under a temporary name at first.

        Parameters
        ----------
        path : Path
        members : int
            1 to 16,384.
        capacity : int
            Most 64-bit words that a member brings.
        """
        if not 1 <= members <= _MOST or capacity < 0:
            raise UsageError(
                f"a gathering of {members} with {capacity} words each: use 1 to {_MOST} members "
                "and 0 words or more"
            )
        size = 8 * int(_entry(members, capacity, members))
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            header = np.array([_MAGIC, _VERSION, members, capacity], np.uint64)
            os.pwrite(descriptor, header.tobytes(), 0)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)

    def lost(self, member: int) -> None:
        """Say that a member is gone; whoever waits for it goes on, and it is in no later round."""
        store(self.words, int(_entry(self.members, self.capacity, member)) + _LINE, 1)

    def agree(
        self,
        payload: np.ndarray,
        timeout_s: float = 10.0,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Agree on who is there and what each of them brings; :attr:`present` and :meth:`of` tell.

        Parameters
        ----------
        payload : ndarray of uint64, 1-d, contiguous
        timeout_s : float
        look : callable
            Called now and then while others are late; it may tell who is :meth:`lost`, or raise.

        Raises
        ------
        Fenced
            The others went on without this process: it was held for gone.
        DeadlineExceeded
            Somebody neither came nor was declared gone. The call may be repeated; what was
            brought the first time stays.
        """
        length = len(payload)
        if payload.dtype is not _DTYPE or payload.ndim != 1 or not payload.flags.c_contiguous:
            raise UsageError("a gathering takes a contiguous 1-d array of uint64")
        if length > self.capacity:
            raise UsageError(f"{length} words do not fit: this gathering has {self.capacity}")
        number = self.round + 1
        if self._came == number:  # what others may be reading already is not written again
            length = -1
        self._came = number
        code = _agree_directly(self._call, payload, length, number)
        if code == _WAITING:
            code = self._wait(number, time.monotonic() + timeout_s, look)
        if code == _FENCED:
            raise Fenced(f"round {number} went on without member {self.me}: it was held for gone")
        self.round = number

    def _wait(self, number: int, deadline: float, look: Callable[[], object]) -> int:
        while True:
            look()
            code = _agree_directly(self._call, self._present, -1, number)
            if code != _WAITING:
                return code
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"members {self._late(number)} did not come to round {number} at member "
                    f"{self.me} and nobody says that they are gone"
                )

    def _late(self, number: int) -> list[int]:
        starts = (int(_entry(self.members, self.capacity, m)) for m in self.present)
        pairs = zip(self.present, starts, strict=True)
        return [m for m, at in pairs if self.words[at] < number and not self.words[at + _LINE]]

    @property
    def present(self) -> tuple[int, ...]:
        """Who was in the last round; everybody before the first."""
        bits = np.unpackbits(self._present.view(np.uint8), bitorder="little")
        return tuple(np.flatnonzero(bits).tolist())

    def of(self, member: int) -> np.ndarray:
        """What a member brought to the last round, valid until the next; empty if it was not in."""
        return self._out[member, : int(self._lengths[member])]


def _everybody(members: int) -> np.ndarray:
    bits = np.zeros((members + 63) // 64 * 64, np.uint8)
    bits[:members] = 1
    return np.packbits(bits, bitorder="little").view(np.uint64)
