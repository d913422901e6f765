"""The plane of messages: frames of slots travel over MPI, for ranks that share no memory.

Each end has a ring of its own in private memory, and MPI moves slots from one to the other. The
sender's slots are the retained copy and are sent from in place; the receiver's slots have receives
posted beforehand, their publish words cleared, and are verified in place. The publish word does
not travel: the receiver stores it once MPI says that the slot is whole.

Each generation of a link has tags, slots and stream numbers of its own, so that a message of an
old one reaches nobody: four tags in a row for frames, what the receiver tells, frames sent again,
and the sender's end.
"""

from __future__ import annotations

import mmap
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ftrt import atomics
from ftrt.errors import PeerFailed, UsageError
from ftrt.transport import layout, meta, notes
from ftrt.transport.base import Frame
from ftrt.transport.layout import PAGE
from ftrt.transport.ring import RecvRing, SendRing
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


class _PrivateRing(layout.RingMap):
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
        self._map = _PrivateRing(slots, slot_bytes, wire_stream(stream_id, generation))
        self._ring = SendRing(self._map)
        self.slots, self.slot_bytes = slots, self._map.slot_bytes
        self._wire, self.peer, self._tag = wire, peer, tag
        self._sends: deque[Any] = deque()  # those of the frames that are not given back
        self._again: list[Any] = []
        self._dispatched = self._reaped = self._released = self._healed = 0
        self._retired = False
        self.broken: PeerFailed | None = None
        self._end = _Outbox(wire, peer, tag + END)
        self._told: _Inbox | None = None
        try:
            self._told = _Inbox(wire, peer, tag + TOLD, _NOTES)
        except PeerFailed as failure:
            self.broken = failure
        self.first_seq_of = self._ring.first_seq_of
        self.count_of = self._ring.count_of
        self.is_batch = self._ring.is_batch

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
        self._say(_CLOSED, self._dispatched, last_seq + 2)

    def seal(self, last_frame: int) -> None:
        """Say that no frame behind ``last_frame`` counts."""
        self._say(_SEALED, last_frame, 0)

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
        self._map = _PrivateRing(slots, slot_bytes, wire_stream(stream_id, generation))
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
        self._out = _Outbox(wire, peer, tag + TOLD)
        self._end: _Inbox | None = None
        try:
            self._end = _Inbox(wire, peer, tag + END, 2)
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
                if note[0] == _CLOSED:
                    self._map.put(layout.W_CLOSED_FRAMES, note[1])
                    self._map.put(layout.W_CLOSED, note[2])
                elif note[0] == _SEALED:
                    self._map.put(layout.W_SEALED, note[1] + 1)
        except PeerFailed as failure:
            self.broken = failure
