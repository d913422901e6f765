"""The sender's end of a channel of messages (see ``mpi_channel``)."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ftrt.errors import PeerFailed, UsageError
from ftrt.transport import layout, meta
from ftrt.transport.mpi_parts import (
    AGAIN,
    CLOSED,
    DATA,
    END,
    NOTES,
    SEALED,
    TOLD,
    Inbox,
    Outbox,
    PrivateRing,
    Wire,
    wire_stream,
)
from ftrt.transport.ring import SendRing
from ftrt.transport.route import NEVER
from ftrt.transport.slots import PREFIX_BYTES, Verdict, verify


class SendMpi:
    """The sender's end: a window of slots, each sent in place and kept until it is given back."""

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
        self._ring = SendRing(self._map, NEVER, NEVER)  # MPI reads it next, on this core
        self.slots, self.slot_bytes = slots, self._map.slot_bytes
        self._wire, self.peer, self._tag = wire, peer, tag
        self._sends: deque[Any] = deque()  # those of the frames that are not given back
        self._again: list[Any] = []
        self._dispatched = self._reaped = self._released = self._healed = 0
        self._retired = False
        self.broken: PeerFailed | None = None
        self._end = Outbox(wire, peer, tag + END)
        self._told: Inbox | None = None
        try:
            self._told = Inbox(wire, peer, tag + TOLD, NOTES)
        except PeerFailed as failure:
            self.broken = failure
        self.first_seq_of = self._ring.first_seq_of
        self.count_of = self._ring.count_of
        self.is_batch = self._ring.is_batch
        self.differs = self._ring.differs

    @property
    def frames_sent(self) -> int:
        """Number of the last frame sent."""
        return self._dispatched

    @property
    def frames_released(self) -> int:
        """Frames that the receiver has given back and whose slots are free."""
        self._listen()
        return self._reaped

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""
        return self.slots - self._dispatched + self.frames_released

    @property
    def oldest_seq_held(self) -> int:
        """First seq of the oldest frame not given back; one past the last seq if there is none."""
        self._listen()
        return self._ring.oldest_seq_held

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message of any shape and dtype; False if there is no credit for all of it."""
        if self.broken or self._retired:
            return False
        if not self._ring.try_send(seq, array, epoch):
            self._listen()
            if not self._ring.try_send(seq, array, epoch):
                return False
        self._dispatch()
        return True

    def try_send_batch(self, first_seq: int, records, epoch: int) -> int:
        """Send the rows of ``records`` as messages; how many were taken."""
        if self.broken or self._retired:
            return 0
        done = self._ring.try_send_batch(first_seq, records, epoch)
        if not done:
            self._listen()
            done = self._ring.try_send_batch(first_seq, records, epoch)
        self._dispatch()
        return done

    def nacked(self) -> int | None:
        """Number of the frame that the receiver could not read, if any."""
        self._listen()
        return self._ring.nacked()

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Send a frame again: from its slot if that is sound, else from ``array``."""
        if self.nacked() != frame:
            raise UsageError(f"frame {frame} was not asked for again: its reader may be using it")
        if self._sound(frame):
            self._map.put(layout.W_NACK, 0)
        else:
            self._ring.rewrite(frame, meta.as_array(array), epoch)
        try:
            self._again = [r for r in self._again if not self._wire.done(r)]
            self._again.append(self._wire.send(self._filled(frame), self.peer, self._tag + AGAIN))
        except PeerFailed as failure:
            self.broken = failure

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message (first seq - 1 if there was none)."""
        self._say(CLOSED, self._dispatched, last_seq + 2)

    def seal(self, last_frame: int) -> None:
        """Say that no frame behind ``last_frame`` counts."""
        self._say(SEALED, last_frame, 0)

    def give_up(self) -> int:
        """Send nothing more; the first number that the receiver may not have."""
        held = self.oldest_seq_held
        self.seal(self._released)
        self.retire()
        return held

    def retire(self) -> None:
        """A later generation took over; the slots are kept as long as sends may read them."""
        if self._retired:
            return
        self._retired = True
        if self._told is not None:
            self._told.retire()
        self._end.retire()
        self._wire.retire([], [*self._sends, *self._again], self._map)

    def _dispatch(self) -> None:
        """Start the sends of the frames that were written."""
        last = self._ring.frames_sent
        while self._dispatched < last:
            self._dispatched += 1
            if self.broken:
                continue  # the frame is kept; what counts is decided by the next epoch
            try:
                part = self._filled(self._dispatched)
                self._sends.append(self._wire.send(part, self.peer, self._tag + DATA))
            except PeerFailed as failure:
                self.broken = failure

    def _filled(self, frame: int) -> np.ndarray:
        size = int(self._map.words[self._map.at(frame) + 3])
        return self._map.part_of(frame)[: PREFIX_BYTES - 8 + size]

    def _say(self, kind: int, frames: int, seq: int) -> None:
        try:
            if not self._retired:
                self._end.post(kind, frames, seq)
        except PeerFailed as failure:
            self.broken = failure

    def _listen(self) -> None:
        """Hear what was given back and asked for; free slots that MPI does not read any more."""
        if self._told is None or self._retired or self.broken:
            return
        try:
            while (note := self._told.take()) is not None:
                released, nack, asked = note[:3]
                self._released = max(self._released, min(released, self._dispatched))
                if asked > self._healed and nack <= self._dispatched:
                    self._healed = asked  # each request is served once
                    self._map.put(layout.W_NACK, nack)
            if self._again:
                self._again = [r for r in self._again if not self._wire.done(r)]
            before = self._reaped
            while self._reaped < self._released and not self._again:
                if not self._wire.done(self._sends[0]):
                    break
                self._sends.popleft()
                self._reaped += 1
            if self._reaped != before:
                self._map.put(layout.W_RELEASED, self._reaped)
        except PeerFailed as failure:
            self.broken = failure

    def _sound(self, frame: int) -> bool:
        ring = self._map
        verdict = verify(
            ring.words,
            ring.octets,
            ring.at(frame),
            frame,
            ring[layout.W_STREAM],
            0,
            0,
            self.slot_bytes,
        )
        return verdict == Verdict.OK
