"""What both ends of a channel of messages are made of: the wire, private rings, notes' boxes."""

from __future__ import annotations

import mmap
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ftrt import atomics
from ftrt.transport import layout, notes
from ftrt.transport.layout import PAGE

DATA, TOLD, AGAIN, END = range(4)
TAGS = 4
NOTES = 4
CLOSED, SEALED = 1, 2


class Wire(Protocol):
    """Messages between processes (:class:`ftrt.mpi.Wire`). No call blocks."""

    def send(self, buffer: np.ndarray, process: int, tag: int) -> Any:
        """Start a send; :class:`PeerFailed` if that cannot be."""

    def receive(self, buffer: np.ndarray, process: int, tag: int) -> Any:
        """Post a receive; :class:`PeerFailed` if that cannot be."""

    def done(self, request: Any) -> bool:
        """Whether a request is complete; :class:`PeerFailed` if it never will be."""

    def fetch(self, buffer: np.ndarray, process: int, tag: int) -> bool:
        """Take a message that nobody posted a receive for, if one has arrived."""

    def retire(self, receives: list, sends: list, memory: Any) -> None:
        """Give up requests; ``memory`` is kept until none of them can touch it any more."""


def wire_stream(stream_id: int, generation: int) -> int:
    """The stream number in the headers of one generation: a frame of another one is stale."""
    return zlib.crc32(f"{stream_id}/{generation}".encode())


class PrivateRing(layout.RingMap):
    """A ring in memory of this process alone."""

    def __init__(self, slots: int, slot_bytes: int, stream: int) -> None:
        self.path = Path("the plane of messages")
        slot_bytes = layout.check_sizes(slots, slot_bytes)
        self.memory = mmap.mmap(-1, layout.file_size(slots, slot_bytes))
        self.words = np.frombuffer(self.memory, np.uint64)
        self.octets = np.frombuffer(self.memory, np.uint8)
        self.words[layout.W_SLOTS], self.words[layout.W_SLOT_BYTES] = slots, slot_bytes
        self.words[layout.W_STREAM] = stream
        self.slots, self.slot_bytes = slots, slot_bytes
        self._stride = self.stride_words
        slot_rows = self.octets[PAGE:].reshape(slots, -1)
        self.travelling = [row[8:] for row in slot_rows]  # all but the publish word

    def at(self, frame: int) -> int:
        """First word of a frame's slot."""
        return PAGE // 8 + (frame - 1) % self.slots * self._stride

    def part_of(self, frame: int) -> np.ndarray:
        """The bytes of a frame's slot that travel."""
        return self.travelling[(frame - 1) % self.slots]

    def put(self, word: int, value: int) -> None:
        """Store a control or publish word, earlier stores first."""
        atomics.store(self.words, word, value)


class Outbox:
    """Sends notes from a few buffers; what does not fit now is told with a later one."""

    def __init__(self, wire: Wire, peer: int, tag: int) -> None:
        self._wire, self._peer, self._tag = wire, peer, tag
        self._free = [notes.blank() for _ in range(NOTES)]
        self._busy: deque[tuple[Any, np.ndarray]] = deque()

    def post(self, *values: int) -> bool:
        """Send a note; False if all buffers are still on their way."""
        while self._busy and self._wire.done(self._busy[0][0]):
            self._free.append(self._busy.popleft()[1])
        if not self._free:
            return False
        note = self._free.pop()
        notes.write(note, *values)
        self._busy.append((self._wire.send(note, self._peer, self._tag), note))
        return True

    def retire(self) -> None:
        """Nothing is sent from here any more."""
        self._wire.retire([], [request for request, _ in self._busy], self._busy)


class Inbox:
    """Receives notes in order, from buffers posted beforehand."""

    def __init__(self, wire: Wire, peer: int, tag: int, depth: int) -> None:
        self._wire, self._peer, self._tag = wire, peer, tag
        self._posted: deque[tuple[Any, np.ndarray]] = deque()
        for _ in range(depth):
            self._post(notes.blank())

    def _post(self, note: np.ndarray) -> None:
        note[:] = 0
        self._posted.append((self._wire.receive(note, self._peer, self._tag), note))

    def take(self) -> list[int] | None:
        """The next note that has arrived whole."""
        while self._wire.done(self._posted[0][0]):
            note = self._posted.popleft()[1]
            values = notes.read(note)
            self._post(note)
            if values is not None:
                return values
        return None

    def retire(self) -> None:
        """Nothing is received here any more."""
        self._wire.retire([request for request, _ in self._posted], [], self._posted)
