"""The shared-memory plane: a ring of slots that the sender writes and the receiver reads in place.

The file is also the retained copy: it outlives both ends, and a successor of either goes on with
it. Frames are numbered from 1; frame ``f`` lies in slot ``(f - 1) % slots``.
"""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

import numpy as np

from ftrt import atomics
from ftrt.errors import Fenced, FtrtError, InvariantBroken, UsageError
from ftrt.transport import layout, meta
from ftrt.transport.base import Frame
from ftrt.transport.layout import FRAME_BITS, FRAME_MASK, PAGE
from ftrt.transport.ring_admin import flip_bits, retire_receiver, seal_sender
from ftrt.transport.slots import (
    BATCH,
    FRAGMENT,
    MORE,
    PREFIX_BYTES,
    STREAM_FROM,
    Verdict,
    publish,
    verify,
)

__all__ = ["RecvRing", "RingRetired", "SendRing", "flip_bits", "retire_receiver", "seal_sender"]

_PAGE_WORDS = PAGE // 8
_OK, _EMPTY, _STALE, _TORN, _DUPLICATE = (int(v) for v in Verdict)


class RingRetired(Fenced):
    """This end of the ring was retired or sealed: a successor owns it now."""


class _Sent(NamedTuple):
    """What the sender remembers of a frame, to write it again."""

    seq: int
    count: int
    flags: int
    fragment: int


class SendRing:
    """The sender's end of a ring; made by :meth:`create`."""

    def __init__(self, ring: layout.RingMap) -> None:
        self._map = ring
        self._words = ring.words
        self._slots = ring[layout.W_SLOTS]
        self._stride = ring.stride_words
        self._stream = ring[layout.W_STREAM]
        self.slot_bytes = ring[layout.W_SLOT_BYTES]
        self.path = ring.path
        self._sent = 0
        self._released = 0
        self._history: deque[_Sent] = deque(maxlen=self._slots)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike,
        *,
        slots: int,
        slot_bytes: int,
        job,
        stream_id: int,
        source: int,
        dest: int,
        generation: int = 0,
        epoch: int = 0,
        first_seq: int = 0,
    ) -> SendRing:
        """Create the ring file; it appears under its name when it is complete."""
        ring = layout.create_file(
            path,
            {
                layout.W_MAGIC: layout.MAGIC,
                layout.W_VERSION: layout.VERSION,
                layout.W_SLOTS: slots,
                layout.W_SLOT_BYTES: layout.check_sizes(slots, slot_bytes),
                layout.W_JOB: layout.job_hash(job),
                layout.W_STREAM: stream_id,
                layout.W_SOURCE: source,
                layout.W_DEST: dest,
                layout.W_GENERATION: generation,
                layout.W_FIRST_SEQ: first_seq,
                layout.W_EPOCH: epoch,
            },
        )
        return cls(ring)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self._slots

    @property
    def frames_sent(self) -> int:
        """Number of the last frame published."""
        return self._sent

    @property
    def frames_released(self) -> int:
        """Frames that the receiver has given back."""
        self._released = atomics.load(self._words, layout.W_RELEASED) & FRAME_MASK
        return self._released

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""
        return self._slots - self._sent + self.frames_released

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message of any shape and dtype; False if there is no credit for all of it."""
        array = meta.as_array(array)
        size = array.nbytes
        needed = 1 if size <= self.slot_bytes else -(-size // self.slot_bytes)
        if not self._has_credit(needed):
            return False
        if needed == 1:
            self._put(_Sent(seq, 1, 0, 0), array, meta.octets(array), epoch)
            return True
        for fragment in range(needed):
            flags = FRAGMENT | (MORE if fragment + 1 < needed else 0)
            self._put_fragment(_Sent(seq, 1, flags, fragment), array, epoch)
        return True

    def try_send_batch(self, first_seq: int, records, epoch: int) -> int:
        """Send the rows of ``records`` as messages; how many were taken.

        A frame carries as many rows as its slot holds, under one checksum.
        """
        records = meta.as_array(records)
        if records.ndim < 1:
            raise UsageError("a batch needs an array whose first axis counts the records")
        rows = len(records)
        row_bytes = records.nbytes // rows if rows else 0
        if row_bytes > self.slot_bytes:
            raise UsageError(
                f"records of {row_bytes} bytes do not fit into slots of "
                f"{self.slot_bytes}: send them one by one"
            )
        step = min(rows, self.slot_bytes // row_bytes) if row_bytes else rows
        done = 0
        while done < rows and self._has_credit(1):
            part = records[done : done + step]
            sent = _Sent(first_seq + done, len(part), BATCH, 0)
            self._put(sent, part, meta.octets(part), epoch)
            done += len(part)
        return done

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message (first seq - 1 if there was none)."""
        atomics.store(self._words, layout.W_CLOSED_FRAMES, self._sent)
        atomics.store(self._words, layout.W_CLOSED, last_seq + 2)

    def nacked(self) -> int | None:
        """Number of the frame that the receiver could not read, if any."""
        return atomics.load(self._words, layout.W_NACK) or None

    def first_seq_of(self, frame: int) -> int:
        """First seq in a frame that was sent and not overwritten since."""
        return self._record(frame).seq

    def count_of(self, frame: int) -> int:
        """Number of messages in a frame that was sent and not overwritten since."""
        return self._record(frame).count

    def is_batch(self, frame: int) -> bool:
        """Whether a frame that was sent carries records rather than one message."""
        return bool(self._record(frame).flags & BATCH)

    @property
    def oldest_seq_held(self) -> int:
        """First seq of the oldest frame not given back; one past the last seq if there is none."""
        frame = self.frames_released + 1
        if frame <= self._sent:
            return self._record(frame).seq
        if not self._history:
            return 1
        return self._history[-1].seq + self._history[-1].count

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Heal a frame: ``array`` is a pristine copy of its whole message, or of its records."""
        if self.nacked() != frame:
            raise UsageError(f"frame {frame} was not asked for again: its reader may be using it")
        if atomics.load(self._words, layout.W_SEALED):
            raise RingRetired(f"{self.path}: the sender's end was sealed")
        sent = self._record(frame)
        array = meta.as_array(array)
        if sent.flags & FRAGMENT:
            self._put_fragment(sent, array, epoch, frame)
        else:
            self._put(sent, array, meta.octets(array), epoch, frame)
        self._map.swap(layout.W_NACK, frame, 0)

    def _record(self, frame: int) -> _Sent:
        age = self._sent - frame
        if not 0 <= age < len(self._history):
            raise UsageError(f"frame {frame} is not among the last {len(self._history)} sent")
        return self._history[-1 - age]

    def _has_credit(self, needed: int) -> bool:
        if needed > self._slots:
            raise UsageError(
                f"a message of {needed} fragments cannot pass a ring of {self._slots} "
                f"slots of {self.slot_bytes} bytes: ask for more or larger slots"
            )
        if atomics.load(self._words, layout.W_SEALED):
            raise RingRetired(f"{self.path}: the sender's end was sealed")
        if self._slots - self._sent + self._released >= needed:
            return True
        return self.free_slots >= needed

    def _put_fragment(self, sent: _Sent, array, epoch: int, frame: int = 0) -> None:
        start = sent.fragment * self.slot_bytes
        part = meta.octets(array)[start : start + self.slot_bytes]
        total = -(-array.nbytes // self.slot_bytes)
        self._put(sent, array, part, epoch, frame, total)

    def _put(self, sent: _Sent, array, payload, epoch: int, frame: int = 0, total: int = 1) -> None:
        """Write one frame: the next one, or ``frame`` again."""
        words, meta_size = meta.encode(array.dtype, array.shape)
        number = frame or self._sent + 1
        publish(
            self._words,
            _PAGE_WORDS + ((number - 1) % self._slots) * self._stride,
            number,
            epoch << 32 | self._stream,
            sent.seq,
            payload,
            words,
            meta_size,
            sent.count << 32 | sent.flags,
            sent.fragment << 32 | total,
            len(payload) >= STREAM_FROM,
        )
        if not frame:
            self._sent = number
            self._history.append(sent)
            atomics.store(self._words, layout.W_SENT, number)


class RecvRing:
    """The receiver's end of a ring; made by :meth:`attach`."""

    def __init__(self, ring: layout.RingMap, generation: int, next_frame: int) -> None:
        self._map = ring
        self._words = ring.words
        self._octets = ring.octets
        self._readonly = memoryview(ring.memory).toreadonly()
        self._slots = ring[layout.W_SLOTS]
        self._capacity = ring[layout.W_SLOT_BYTES]
        self._stride = ring.stride_words
        self._stream = ring[layout.W_STREAM]
        self._generation = generation
        self._next = next_frame
        self._next_seq = 0
        self._asked = ring[layout.W_NACK]
        self._partial: np.ndarray | None = None
        self.path = ring.path
        self.min_epoch = ring[layout.W_EPOCH]
        self.source = ring[layout.W_SOURCE]
        self.dest = ring[layout.W_DEST]
        self.first_seq = ring[layout.W_FIRST_SEQ]
        self.counters = dict.fromkeys(("ok", "empty", "stale", "torn", "duplicate", "nacks"), 0)

    @classmethod
    def attach(
        cls,
        path: str | os.PathLike,
        start_frame: int | None = None,
        *,
        adopt: bool = False,
        job=None,
    ) -> RecvRing:
        """Map a ring and read it from ``start_frame`` (by default the first one not released).

        With ``adopt`` the receiver generation is bumped, so that an earlier receiver can no
        longer release anything. With ``job`` a ring of another job is refused.
        """
        if adopt:
            retire_receiver(path)
        ring = layout.RingMap.open(path)
        if job is not None and ring[layout.W_JOB] != layout.job_hash(job):
            raise FtrtError(f"{path} is a ring of another job")
        word = ring[layout.W_RELEASED]
        first = (word & FRAME_MASK) + 1
        if start_frame is not None and start_frame < first:
            raise UsageError(f"{path}: frame {start_frame} was released already")
        return cls(ring, word >> FRAME_BITS, start_frame or first)

    def poll(self) -> Frame | None:
        """The next frame, or None if none can be read now.

        A damaged frame is counted and asked for again; nothing passes it until it is healed.
        """
        if self._asked:
            # Until it is rewritten even a sound frame may still change under the reader.
            self._asked = self._map[layout.W_NACK]
            if self._asked == self._next:
                return None
        while True:
            at = _PAGE_WORDS + ((self._next - 1) % self._slots) * self._stride
            verdict = verify(
                self._words,
                self._octets,
                at,
                self._next,
                self._stream,
                self.min_epoch,
                self._next_seq,
                self._capacity,
            )
            if verdict != _OK and verdict != _DUPLICATE:
                self._refuse(verdict, at)
                return None
            if not self.admits(self._next):
                return None
            frame = self._take(at, verdict)
            if frame is not None:
                return frame

    def admits(self, number: int) -> bool:
        """Whether a frame counts: the sender's end is not sealed, or sealed behind it."""
        sealed = atomics.load(self._words, layout.W_SEALED)
        return not sealed or number < sealed

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``; fails if another receiver took over."""
        if number >= self._next:
            raise UsageError(f"frame {number} was not read yet")
        while True:
            word = self._map[layout.W_RELEASED]
            if word >> FRAME_BITS != self._generation:
                raise RingRetired(f"{self.path}: another receiver took over")
            if number <= word & FRAME_MASK:
                return
            desired = self._generation << FRAME_BITS | number
            if self._map.swap(layout.W_RELEASED, word, desired) == word:
                return

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self._slots

    @property
    def next_frame(self) -> int:
        """Number of the frame that :meth:`poll` looks for."""
        return self._next

    @property
    def closed_seq(self) -> int | None:
        """Last seq of the stream, once the sender has closed it."""
        word = self._map[layout.W_CLOSED]
        return word - 2 if word else None

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        return bool(self._map[layout.W_CLOSED]) and self._next > self._map[layout.W_CLOSED_FRAMES]

    @property
    def exhausted(self) -> bool:
        """The sender's end was sealed and all that counts was read."""
        sealed = self._map[layout.W_SEALED]
        return bool(sealed) and self._next >= sealed

    def _refuse(self, verdict: int, at: int) -> None:
        """Count why a frame cannot be read, and ask for it again if it is damaged."""
        published = atomics.load(self._words, at)
        expected = (0, self._next, self._next - self._slots)
        if verdict == _EMPTY and (published in expected or self._next <= self._slots):
            self.counters["empty"] += 1  # nothing yet, or it has come just now
            return
        if published > self._next and self._overrun():
            raise InvariantBroken(f"{self.path}: frame {self._next} was overwritten unread")
        self._asked = self._next
        if self._map.swap(layout.W_NACK, 0, self._next) == 0:
            self.counters["stale" if verdict == _STALE else "torn"] += 1
            self.counters["nacks"] += 1

    def _overrun(self) -> bool:
        return self._map[layout.W_RELEASED] & FRAME_MASK >= self._next

    def _take(self, at: int, verdict: int) -> Frame | None:
        """Build the frame at ``at`` and move on; None for a fragment that is not the last."""
        _, ident, seq, size, _, tally, part, _ = self._words[at : at + 8].tolist()
        number, flags, count = self._next, tally & 0xFFFF_FFFF, tally >> 32
        start = at * 8 + 64
        dtype, shape = meta.decode(self._readonly[start : start + (part >> 48)].tobytes())
        self._next = number + 1
        start = at * 8 + PREFIX_BYTES
        if flags & FRAGMENT:
            array = self._assemble(start, size, dtype, shape, part >> 32 & 0xFFFF)
            if flags & MORE:
                return None
            array = array.view(dtype).reshape(shape)
            array.flags.writeable = False
            self._partial = None
        else:
            array = np.ndarray(shape, dtype, self._readonly, start)
        self._next_seq = max(self._next_seq, seq + count)
        self.counters["ok" if verdict == _OK else "duplicate"] += 1
        return Frame(number, seq, count, bool(flags & BATCH), ident >> 32, array, Verdict(verdict))

    def _assemble(self, start: int, size: int, dtype, shape, fragment: int) -> np.ndarray:
        if fragment == 0:
            self._partial = np.empty(int(np.prod(shape)) * dtype.itemsize, np.uint8)
        if self._partial is None:
            raise InvariantBroken(f"{self.path}: a series of fragments begins at {fragment}")
        offset = fragment * self._capacity
        self._partial[offset : offset + size] = self._octets[start : start + size]
        return self._partial
