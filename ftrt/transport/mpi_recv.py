"""The receiver's end of a channel of messages (see ``mpi_channel``)."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ftrt.errors import PeerFailed, UsageError
from ftrt.transport import layout
from ftrt.transport.base import Frame
from ftrt.transport.mpi_parts import (
    AGAIN,
    CLOSED,
    DATA,
    END,
    SEALED,
    TOLD,
    Inbox,
    Outbox,
    PrivateRing,
    Wire,
    wire_stream,
)
from ftrt.transport.ring import RecvRing
from ftrt.transport.slots import PREFIX_BYTES


class RecvMpi:
    """The receiver's end: slots with receives posted, verified in place."""

    def __init__(
        self,
        wire: Wire,
        peer: int,
        tag: int,
        *,
        slots: int,
        slot_bytes: int,
        stream_id: int = 0,
        generation: int = 0,
    ) -> None:
        self._map = PrivateRing(slots, slot_bytes, wire_stream(stream_id, generation))
        self._ring = RecvRing(self._map, 0, 1)
        self.slots = slots
        self._wire, self.peer, self._tag = wire, peer, tag
        self.counters = self._ring.counters
        self._arrived = self._released = self._told_released = 0
        self._nack = self._nacks_seen = self._nacks_told = 0
        self.broken: PeerFailed | None = None
        self._superseded = False
        self._tell_every = max(1, slots // 4)
        self._posted: deque[Any] = deque()
        self._again: Any = None
        self._out = Outbox(wire, peer, tag + TOLD)
        self._end: Inbox | None = None
        try:
            self._end = Inbox(wire, peer, tag + END, 2)
            for frame in range(1, slots + 1):
                self._post(frame)
        except PeerFailed as failure:
            self.broken = failure

    def poll(self) -> Frame | None:
        """The next frame, or None if none can be read now.

        A damaged frame is counted and asked for again; nothing passes it until it is healed.
        """
        ring = self._ring
        while True:
            if self._arrived >= ring.next_frame:
                if self._again is not None and not self._healed():
                    return None
                frame = ring.poll()
                if frame is not None:
                    return frame
                if self.counters["nacks"] != self._nacks_seen:
                    self._ask()
                    return None
                if self._arrived >= ring.next_frame:
                    return None  # it lies behind the seal
            if not self._reap():
                self.counters["empty"] += 1
                self.serve()
                return None

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``; their slots receive later frames."""
        self._ring.release(number)
        try:
            while self._released < number:
                self._released += 1
                if not self._superseded and not self.broken:
                    self._post(self._released + self.slots)
        except PeerFailed as failure:
            self.broken = failure
            self._released = number
        if self._released - self._told_released >= self._tell_every:
            self._tell()

    def serve(self) -> None:
        """Tell the sender what it does not know yet, and hear whether it has ended."""
        if self._released != self._told_released or self._nacks_seen != self._nacks_told:
            self._tell()
        self._hear_end()

    @property
    def next_frame(self) -> int:
        """Number of the frame that :meth:`poll` looks for."""
        return self._ring.next_frame

    @property
    def closed_seq(self) -> int | None:
        """Last seq of the stream, once the sender has closed it."""
        self._hear_end()
        return self._ring.closed_seq

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        self._hear_end()
        return self._ring.finished

    @property
    def exhausted(self) -> bool:
        """The sender gave this generation up, or was replaced, and all that is here was read."""
        self._hear_end()
        if self._ring.exhausted:
            return True
        return self._superseded and not (self._arrived >= self.next_frame and self._again is None)

    def supersede(self) -> None:
        """The sender's process was replaced: what has not arrived will be sent anew."""
        self._reap_all()
        self._superseded = True

    def retire(self) -> None:
        """A later generation took over. Frames that are still held stay where they are."""
        self._superseded = True
        posted = [*self._posted, *([] if self._again is None else [self._again])]
        self._posted.clear()
        self._wire.retire(posted, [], self._map)
        self._out.retire()
        if self._end is not None:
            self._end.retire()
            self._end = None

    def damage(self, frame: int) -> None:
        """Fault injection: flip bits in a frame that has arrived and was not read."""
        self._reap_all()
        if not self.next_frame <= frame <= self._arrived or self._again is not None:
            raise UsageError(f"frame {frame} has not arrived")
        at = self._map.at(frame)
        size = int(self._map.words[at + 3])
        if size:
            self._map.octets[at * 8 + PREFIX_BYTES + size // 2] ^= 0x5A
        else:
            self._map.words[at + 2] ^= np.uint64(0x5A)

    def _post(self, frame: int) -> None:
        """Clear the publish word of a frame's slot and receive into it."""
        self._map.put(self._map.at(frame), 0)
        part = self._map.part_of(frame)
        self._posted.append(self._wire.receive(part, self.peer, self._tag + DATA))

    def _reap(self) -> bool:
        """Publish the next frame if it has arrived."""
        if not self._posted or self.broken:
            return False
        try:
            if not self._wire.done(self._posted[0]):
                return False
        except PeerFailed as failure:
            self.broken = failure
            return False
        self._posted.popleft()
        self._arrived += 1
        self._map.put(self._map.at(self._arrived), self._arrived)
        self._map.put(layout.W_SENT, self._arrived)
        return True

    def _reap_all(self) -> None:
        while self._reap():
            pass

    def _ask(self) -> None:
        """Ask for the damaged frame again; it comes with a tag of its own, so nothing overtakes."""
        self._nacks_seen = self.counters["nacks"]
        self._nack = self.next_frame
        self._map.put(self._map.at(self._nack), 0)
        try:
            part = self._map.part_of(self._nack)
            self._again = self._wire.receive(part, self.peer, self._tag + AGAIN)
        except PeerFailed as failure:
            self.broken = failure
        self._tell()

    def _healed(self) -> bool:
        try:
            if self.broken or not self._wire.done(self._again):
                self.serve()
                return False
        except PeerFailed as failure:
            self.broken = failure
            return False
        self._again = None
        self._map.put(self._map.at(self._nack), self._nack)
        self._map.put(layout.W_NACK, 0)
        return True

    def _tell(self) -> None:
        if self.broken or self._superseded:
            return
        try:
            if self._out.post(self._released, self._nack, self._nacks_seen):
                self._told_released, self._nacks_told = self._released, self._nacks_seen
        except PeerFailed as failure:
            self.broken = failure

    def _hear_end(self) -> None:
        if self._end is None or self.broken:
            return
        try:
            while (note := self._end.take()) is not None:
                if note[0] == CLOSED:
                    layout.put_end(self._map.words, note[2] - 2, note[1])
                elif note[0] == SEALED:
                    self._map.put(layout.W_SEALED, note[1] + 1)
        except PeerFailed as failure:
            self.broken = failure
