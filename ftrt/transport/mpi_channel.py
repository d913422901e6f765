"""The plane of messages: frames of slots travel over MPI, for ranks that share no memory.

The sender's slots are the retained copy and are sent from in place; the receiver's slots have
receives posted beforehand and are verified in place. Each generation of a link has tags, slots and
stream numbers of its own, so that a message of an old one reaches nobody: four tags in a row for
frames, what the receiver tells, frames sent again, and the sender's end.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, Protocol

import numpy as np

from ftrt.errors import PeerFailed, UsageError
from ftrt.transport import notes
from ftrt.transport.base import Frame
from ftrt.transport.framing import FrameReader, FrameWriter, SlotArea
from ftrt.transport.slots import PREFIX_BYTES, Verdict, verify

DATA, TOLD, AGAIN, END = range(4)
TAGS = 4
_NOTES = 4
_CLOSED, _SEALED = 1, 2


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


class _Outbox:
    """Sends notes from a few buffers; what does not fit now is told with a later one."""

    def __init__(self, wire: Wire, peer: int, tag: int) -> None:
        self._wire, self._peer, self._tag = wire, peer, tag
        self._free = [notes.blank() for _ in range(_NOTES)]
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


class _Inbox:
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


class SendMpi(FrameWriter):
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
        super().__init__(SlotArea(slots, slot_bytes), wire_stream(stream_id, generation))
        self._wire, self.peer, self._tag = wire, peer, tag
        self._requests: list[Any] = [None] * slots
        self._again: list[Any] = []
        self._nack = self._asked = self._healed = 0
        self._retired = False
        self.broken: PeerFailed | None = None
        self._end = _Outbox(wire, peer, tag + END)
        try:
            self._told: _Inbox | None = _Inbox(wire, peer, tag + TOLD, _NOTES)
        except PeerFailed as failure:
            self._told, self.broken = None, failure

    @property
    def frames_released(self) -> int:
        """Frames that the receiver is known to have given back."""
        self._listen()
        return self._released

    def nacked(self) -> int | None:
        """Number of the frame that the receiver could not read, if any."""
        self._listen()
        return self._nack or None

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Send a frame again: from its slot if that is sound, else from ``array``."""
        if self.nacked() != frame:
            raise UsageError(f"frame {frame} was not asked for again: its reader may be using it")
        sent = self._record(frame)
        self._nack, self._healed = 0, self._asked
        if self._sound(frame):
            size = PREFIX_BYTES + int(self.area.words[self.area.word(frame) + 3])
            self._dispatch(frame, size, True)
        else:
            self._put(sent, np.asarray(array, order="C"), epoch, frame)

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message (first seq - 1 if there was none)."""
        self._say(_CLOSED, self._sent, last_seq + 1)

    def give_up(self) -> int:
        """Send nothing more; the first number that the receiver may not have."""
        held = self.oldest_seq_held
        self.seal(self._released)
        self.retire()
        return held

    def seal(self, last_frame: int) -> None:
        """Say that no frame behind ``last_frame`` counts."""
        self._say(_SEALED, last_frame, 0)

    def retire(self) -> None:
        """A later generation took over; the slots are kept as long as sends may read them."""
        if self._retired:
            return
        self._retired = True
        if self._told is not None:
            self._told.retire()
        self._end.retire()
        sends = [r for r in (*self._requests, *self._again) if r is not None]
        self._wire.retire([], sends, self.area)

    def _say(self, kind: int, frames: int, seq: int) -> None:
        try:
            if not self._retired:
                self._end.post(kind, frames, seq)
        except PeerFailed as failure:
            self.broken = failure

    def _listen(self) -> None:
        if self._told is None or self._retired:
            return
        try:
            while (note := self._told.take()) is not None:
                released, nack, asked = note[:3]
                self._released = max(self._released, min(released, self._sent))
                if asked > self._healed and nack <= self._sent:  # each request is served once
                    self._nack, self._asked = nack, asked
        except PeerFailed as failure:
            self.broken = failure
            self._told = None

    def _has_credit(self, needed: int) -> bool:
        if self.slots - self._sent + self._released < needed:
            self._listen()
            if self.slots - self._sent + self._released < needed:
                return False
        if self.broken or self._retired:
            return False
        if needed == 1:
            return self._reusable(self._sent + 1)
        return all(self._reusable(self._sent + 1 + i) for i in range(needed))

    def _reusable(self, frame: int) -> bool:
        """Whether the slot of a frame to come is not being sent from any more."""
        index = self.area.index(frame)
        request = self._requests[index]
        if request is None:
            return True
        try:
            if not self._wire.done(request):
                return False
        except PeerFailed as failure:
            self.broken = failure
            return False
        self._requests[index] = None
        return True

    def _dispatch(self, frame: int, size: int, again: bool) -> None:
        index = self.area.index(frame)
        buffer = self.area.views[index][:size]
        try:
            if again:
                self._again = [r for r in self._again if not self._wire.done(r)]
                self._again.append(self._wire.send(buffer, self.peer, self._tag + AGAIN))
            else:
                self._requests[index] = self._wire.send(buffer, self.peer, self._tag + DATA)
        except PeerFailed as failure:
            self.broken = failure  # the frame is kept; what counts is decided by the next epoch

    def _sound(self, frame: int) -> bool:
        area, sent = self.area, self._record(frame)
        verdict = verify(
            area.words,
            area.octets,
            area.word(frame),
            frame,
            self._stream,
            0,
            sent.seq,
            area.slot_bytes,
        )
        return verdict == Verdict.OK


class RecvMpi(FrameReader):
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
        super().__init__(SlotArea(slots, slot_bytes), wire_stream(stream_id, generation))
        self._wire, self.peer, self._tag = wire, peer, tag
        self.generation = generation
        self.min_epoch = 0
        self._released = self._told_released = 0
        self._nack = 0
        self._nacks_told = 0
        self._closed_frames: int | None = None
        self.closed_seq: int | None = None
        self._sealed: int | None = None
        self.broken: PeerFailed | None = None
        self._superseded = False
        self._tell_every = max(1, slots // 4)
        self._requests: list[Any] = [None] * slots
        self._out = _Outbox(wire, peer, tag + TOLD)
        self._end: _Inbox | None = None
        try:
            self._end = _Inbox(wire, peer, tag + END, 2)
            for frame in range(1, slots + 1):
                self._post(frame, DATA)
        except PeerFailed as failure:
            self.broken = failure

    def poll(self) -> Frame | None:
        """The next frame, or None if none can be read now.

        A damaged frame is counted and asked for again; nothing passes it until it is healed.
        """
        while self._arrived(self._next):
            if self._sealed is not None and self._next > self._sealed:
                return None
            area = self.area
            verdict = verify(
                area.words,
                area.octets,
                area.word(self._next),
                self._next,
                self._stream,
                self.min_epoch,
                self._next_seq,
                area.slot_bytes,
            )
            if verdict not in (Verdict.OK, Verdict.DUPLICATE):
                self._refuse(verdict)
                return None
            frame = self._take(verdict)
            if frame is not None:
                return frame
        self.counters["empty"] += 1
        self.serve()
        return None

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``; their slots receive later frames."""
        if number >= self._next:
            raise UsageError(f"frame {number} was not read yet")
        try:
            while self._released < number and not self._superseded:
                self._released += 1
                self._post(self._released + self.slots, DATA)
        except PeerFailed as failure:
            self.broken = failure
        self._released = max(self._released, number)
        if self._released - self._told_released >= self._tell_every:
            self._tell()

    def serve(self) -> None:
        """Tell the sender what it does not know yet, and hear whether it has ended."""
        if self._released != self._told_released or self.counters["nacks"] != self._nacks_told:
            self._tell()
        self._hear_end()

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        self._hear_end()
        return self._closed_frames is not None and self._next > self._closed_frames

    @property
    def exhausted(self) -> bool:
        """The sender gave this generation up, or was replaced, and all that is here was read."""
        self._hear_end()
        if self._sealed is not None and self._next > self._sealed:
            return True
        return self._superseded and not self._arrived(self._next)

    def supersede(self) -> None:
        """The sender's process was replaced: what has not arrived will be sent anew."""
        self._superseded = True

    def retire(self) -> None:
        """A later generation took over. Frames that are still held stay where they are."""
        self._superseded = True
        posted = [request for request in self._requests if request is not None]
        self._requests = [None] * self.slots
        self._wire.retire(posted, [], self.area)
        self._out.retire()
        if self._end is not None:
            self._end.retire()
            self._end = None

    def damage(self, frame: int) -> None:
        """Fault injection: flip bits in a frame that has arrived and was not read."""
        if frame < self._next or frame > self._released + self.slots or not self._arrived(frame):
            raise UsageError(f"frame {frame} has not arrived")
        at = self.area.word(frame)
        size = int(self.area.words[at + 3])
        if size:
            self.area.octets[at * 8 + PREFIX_BYTES + size // 2] ^= 0x5A
        else:
            self.area.words[at + 2] ^= np.uint64(0x5A)

    def _post(self, frame: int, kind: int) -> None:
        """Clear the header of a frame's slot and receive into it."""
        index = self.area.index(frame)
        self.area.words[index * self.area.stride] = 0
        self._requests[index] = self._wire.receive(
            self.area.views[index], self.peer, self._tag + kind
        )

    def _arrived(self, frame: int) -> bool:
        if frame > self._released + self.slots:
            return False
        index = self.area.index(frame)
        request = self._requests[index]
        if request is None:
            return not self.broken
        try:
            if not self._wire.done(request):
                return False
        except PeerFailed as failure:
            self.broken = failure
            return False
        self._requests[index] = None
        return True

    def _refuse(self, verdict: int) -> None:
        self.counters["stale" if verdict == Verdict.STALE else "torn"] += 1
        self.counters["nacks"] += 1
        try:
            self._post(self._next, AGAIN)
        except PeerFailed as failure:
            self.broken = failure
            return
        self._nack = self._next
        self._tell()

    def _tell(self) -> None:
        if self.broken or self._superseded:
            return
        asked = self.counters["nacks"]
        try:
            if self._out.post(self._released, self._nack, asked):
                self._told_released, self._nacks_told = self._released, asked
        except PeerFailed as failure:
            self.broken = failure

    def _hear_end(self) -> None:
        if self._end is None:
            return
        try:
            while (note := self._end.take()) is not None:
                if note[0] == _CLOSED:
                    self._closed_frames, self.closed_seq = note[1], note[2] - 1
                elif note[0] == _SEALED:
                    self._sealed = note[1]
        except PeerFailed as failure:
            self.broken = failure
            self._end = None
