"""The shared-memory plane: a ring of slots that the sender writes and the receiver reads in place.

The file is also the retained copy: it outlives both ends, and a successor of either goes on with
it. Frames are numbered from 1; frame ``f`` lies in slot ``(f - 1) % slots``.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from ftrt import atomics
from ftrt.errors import Fenced, FtrtError, InvariantBroken, UsageError
from ftrt.transport import layout, meta, route
from ftrt.transport import ring_kernels as rk
from ftrt.transport.base import Frame
from ftrt.transport.layout import FRAME_BITS, FRAME_MASK, PAGE
from ftrt.transport.ring_admin import flip_bits, retire_receiver, seal_sender
from ftrt.transport.ring_heal import differs
from ftrt.transport.slots import BATCH, FRAGMENT, MORE, PREFIX_BYTES, Verdict

__all__ = ["RecvRing", "RingRetired", "SendRing", "flip_bits", "retire_receiver", "seal_sender"]

_PAGE_WORDS = PAGE // 8
_OK, _STALE, _DUPLICATE = (int(v) for v in (Verdict.OK, Verdict.STALE, Verdict.DUPLICATE))


class RingRetired(Fenced):
    """This end of the ring was retired or sealed: a successor owns it now."""


class _Sent(NamedTuple):
    """What the sender remembers of a frame, to write it again."""

    seq: int
    tally: int
    part: int


class _Known:
    """A dtype and shape as the kernels know them; what they point to is kept alive here."""

    def __init__(self) -> None:
        self.words = np.zeros(rk.KNOWN, np.int64)
        self._kept: tuple = ()

    def describe(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        text, size = meta.encode(dtype, shape)
        self._kept = (dtype, text)
        words = self.words
        words[rk.K_DESCR], words[rk.K_ITEM] = id(dtype), dtype.itemsize
        words[rk.K_META], words[rk.K_META_SIZE] = text.ctypes.data, size
        words[rk.K_NDIM] = len(shape)
        words[rk.K_DIMS : rk.K_DIMS + len(shape)] = shape


class SendRing:
    """The sender's end of a ring; made by :meth:`create`.

    Payloads of ``past_from`` bytes and more are stored past the caches, those of ``try_from`` bytes
    and more where that is faster (see :mod:`ftrt.transport.route`).
    """

    def __init__(
        self,
        ring: layout.RingMap,
        try_from: int = route.SMALL_BYTES,
        past_from: int = route.LARGE_BYTES,
    ) -> None:
        self._map = ring
        self._words = ring.words
        self._slots = ring[layout.W_SLOTS]
        self._stream = ring[layout.W_STREAM]
        self.slot_bytes = ring[layout.W_SLOT_BYTES]
        self.path = ring.path
        self._epoch = -1
        self._one, self._row = _Known(), _Known()
        self._one_words, self._row_words = self._one.words, self._row.words
        self._records = np.zeros(self._slots * rk.RECORD_WORDS, np.int64)
        self._state = np.zeros(rk.SEND_STATE, np.int64)
        self._view = memoryview(self._state.data)
        for field, value in (
            (rk.S_WORDS, ring.words.ctypes.data),
            (rk.S_LENGTH, ring.words.size),
            (rk.S_SLOTS, self._slots),
            (rk.S_STRIDE, ring.stride_words),
            (rk.S_SLOT_BYTES, self.slot_bytes),
            (rk.S_RECORDS, self._records.ctypes.data),
            (rk.S_ROUTE + route.TRY_FROM, try_from),
            (rk.S_ROUTE + route.PAST_FROM, past_from),
        ):
            self._state[field] = value

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
        return self._view[rk.S_SENT]

    @property
    def frames_released(self) -> int:
        """Frames that the receiver has given back."""
        return atomics.load(self._words, layout.W_RELEASED) & FRAME_MASK

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""
        return self._slots - self.frames_sent + self.frames_released

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message of any shape and dtype; False if there is no credit for all of it."""
        if epoch != self._epoch:
            self.enter(epoch)
        status = rk.UNKNOWN
        if type(array) is np.ndarray:  # the kernel looks into the object: it must be one
            status = _send_one(self._state, self._one_words, array, seq)
        if status == rk.UNKNOWN:
            array = meta.as_array(array)
            self._one.describe(array.dtype, array.shape)
            if array.nbytes > self.slot_bytes:
                return self._try_fragments(seq, array)
            status = _send_one(self._state, self._one_words, array, seq)
        if status < 0:
            self._raise_sealed()
        return status > 0

    def try_send_batch(self, first_seq: int, records, epoch: int) -> int:
        """Send the rows of ``records`` as messages; how many were taken.

        A frame carries as many rows as its slot holds, under one checksum.
        """
        if epoch != self._epoch:
            self.enter(epoch)
        status = rk.UNKNOWN
        if type(records) is np.ndarray and records.ndim:
            status = _send_rows(self._state, self._row_words, records, 0, first_seq)
        if status == rk.UNKNOWN:
            records = meta.as_array(records)
            self._check_rows(records)
            self._row.describe(records.dtype, records.shape[1:])
            status = _send_rows(self._state, self._row_words, records, 0, first_seq)
        if status < 0:
            self._raise_sealed()
        return status

    def _check_rows(self, records: np.ndarray) -> None:
        if records.ndim < 1:
            raise UsageError("a batch needs an array whose first axis counts the records")
        row_bytes = records.nbytes // len(records) if len(records) else 0
        if row_bytes > self.slot_bytes:
            raise UsageError(
                f"records of {row_bytes} bytes do not fit into slots of "
                f"{self.slot_bytes}: send them one by one"
            )

    def _try_fragments(self, seq: int, array: np.ndarray) -> bool:
        total = -(-array.nbytes // self.slot_bytes)
        if total > self._slots:
            raise UsageError(
                f"a message of {array.nbytes} bytes cannot pass a ring of {self._slots} slots of "
                f"{self.slot_bytes} bytes: slot_bytes={-(-array.nbytes // self._slots)} is the "
                f"least that works, or window={total}"
            )
        if atomics.load(self._words, layout.W_SEALED):
            self._raise_sealed()
        if self.free_slots < total:
            return False
        for fragment in range(total):
            flags = FRAGMENT | (MORE if fragment + 1 < total else 0)
            sent = _Sent(seq, 1 << 32 | flags, fragment << 32 | total)
            self._put(sent, self._one, array, 0)
        return True

    @property
    def state(self) -> np.ndarray:
        """What the kernels know of this end."""
        return self._state

    @property
    def known(self) -> np.ndarray:
        """What the kernels know of the dtype and shape sent last."""
        return self._one_words

    def enter(self, epoch: int) -> None:
        """Send in ``epoch`` from now on."""
        self._epoch = epoch
        self._state[rk.S_IDENT] = epoch << 32 | self._stream

    def _raise_sealed(self) -> None:
        raise RingRetired(f"{self.path}: the sender's end was sealed")

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message (first seq - 1 if there was none)."""
        layout.put_end(self._words, last_seq, self.frames_sent)

    def nacked(self) -> int | None:
        """Number of the frame that the receiver could not read, if any."""
        return atomics.load(self._words, layout.W_NACK) or None

    def first_seq_of(self, frame: int) -> int:
        """First seq in a frame that was sent and not overwritten since."""
        return self._record(frame).seq

    def count_of(self, frame: int) -> int:
        """Number of messages in a frame that was sent and not overwritten since."""
        return self._record(frame).tally >> 32

    def is_batch(self, frame: int) -> bool:
        """Whether a frame that was sent carries records rather than one message."""
        return bool(self._record(frame).tally & BATCH)

    @property
    def oldest_seq_held(self) -> int:
        """First seq of the oldest frame not given back; one past the last seq if there is none."""
        frame, last = self.frames_released + 1, self.frames_sent
        if frame <= last:
            return self._record(frame).seq
        return self._record(last).seq + self.count_of(last) if last else 1

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Heal a frame: ``array`` is a pristine copy of its whole message, or of its records."""
        if self.nacked() != frame:
            raise UsageError(f"frame {frame} was not asked for again: its reader may be using it")
        if atomics.load(self._words, layout.W_SEALED):
            self._raise_sealed()
        sent, array = self._record(frame), meta.as_array(array)
        self.enter(epoch)
        known, shape = self._one, array.shape
        if sent.tally & BATCH:
            known, shape = self._row, shape[1:]
        known.describe(array.dtype, shape)
        self._put(sent, known, array, frame)
        self._map.swap(layout.W_NACK, frame, 0)

    def differs(self, frame: int, array) -> bool:
        """Whether ``array`` cannot be what was sent in ``frame``; see :func:`ring_heal.differs`."""
        return differs(self._map, frame, meta.as_array(array))

    def _put(self, sent: _Sent, known: _Known, array: np.ndarray, frame: int) -> None:
        """Write one frame of ``array``: the next one (0), or ``frame`` again."""
        start = (sent.part >> 32) * self.slot_bytes
        size = min(array.nbytes - start, self.slot_bytes)
        rk.put_part(self._state, known.words, array, start, size, *sent, frame)

    def _record(self, frame: int) -> _Sent:
        age = self.frames_sent - frame
        if not 0 <= age < self._slots or frame < 1:
            raise UsageError(f"frame {frame} is not among the last {self._slots} sent")
        at = (frame - 1) % self._slots * rk.RECORD_WORDS
        return _Sent(*self._records[at : at + rk.RECORD_WORDS].tolist())


class RecvRing:
    """The receiver's end of a ring; made by :meth:`attach`."""

    def __init__(self, ring: layout.RingMap, generation: int, next_frame: int) -> None:
        self._map = ring
        self._words = ring.words
        self._octets = ring.octets
        self._control: Any = memoryview(ring.words.data)
        self._readonly = memoryview(ring.memory).toreadonly()
        self._slots = ring[layout.W_SLOTS]
        self._capacity = ring[layout.W_SLOT_BYTES]
        self._stride = ring.stride_words
        self._next = next_frame
        self._version = 0
        self._dtype = np.dtype(np.uint8)
        self._shape: tuple[int, ...] = (0,)
        self._views: list = [(0, 0, None)] * self._slots
        self._asked = ring[layout.W_NACK]
        self._partial: np.ndarray | None = None
        self.path = ring.path
        self.min_epoch = ring[layout.W_EPOCH]
        self.source = ring[layout.W_SOURCE]
        self.dest = ring[layout.W_DEST]
        self.first_seq = ring[layout.W_FIRST_SEQ]
        self.counters = dict.fromkeys(("ok", "empty", "stale", "torn", "duplicate", "nacks"), 0)
        self._state = np.zeros(rk.RECV_STATE, np.int64)
        for field, value in (
            (rk.R_WORDS, ring.words.ctypes.data),
            (rk.R_LENGTH, ring.words.size),
            (rk.R_SLOTS, self._slots),
            (rk.R_STRIDE, self._stride),
            (rk.R_CAPACITY, self._capacity),
            (rk.R_NEXT, next_frame),
            (rk.R_STREAM, ring[layout.W_STREAM]),
            (rk.R_MIN_EPOCH, self.min_epoch),
            (rk.R_GENERATION, generation),
            (rk.R_META_SIZE, -1),
        ):
            self._state[field] = value

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
            status, seq, size, tally, part, epoch, changed = _take(self._state)
            if status > _DUPLICATE:
                self.counters["empty"] += 1
                return None
            if status != _OK and status != _DUPLICATE:
                self._refuse(status)
                return None
            if changed:
                self._read_meta(part >> 48 & 0xFFFF)
            number, flags, count = self._next, tally & 0xFFFF_FFFF, tally >> 32
            self._next = number + 1
            if flags & FRAGMENT:
                base = self._assemble(number, size, part >> 32 & 0xFFFF, flags & MORE)
                if base is None:
                    continue
                slot_base = None
            else:
                slot = (number - 1) % self._slots
                version, rows, base = self._views[slot]
                if version != self._version or rows != (count if flags else 0):
                    base = self._view(slot, count if flags else 0)
                slot_base = base
            self.counters["ok" if status == _OK else "duplicate"] += 1
            return _new_frame(
                Frame,
                (
                    number,
                    seq,
                    count,
                    flags == BATCH,
                    epoch,
                    base.view(),
                    _VERDICTS[status],
                    slot_base,
                ),
            )

    def _read_meta(self, size: int) -> None:
        text = self._state[rk.R_META :].tobytes()[:size]
        self._dtype, self._shape = meta.decode(text)
        self._version += 1

    def poll_plain(self, seq: int) -> np.ndarray | None:
        """The array of message ``seq``, if it comes within some microseconds, is as the one before
        it and lies in one slot: the usual case of a stream; else :meth:`poll` says what there is.
        """
        if self._asked:
            return None
        slot = _take_plain(self._state, seq)
        if slot < 0:
            return None
        self._next += 1
        self.counters["ok"] += 1
        version, rows, base = self._views[slot]
        if version != self._version or rows:
            base = self._view(slot, 0)
        return base

    def _view(self, slot: int, rows: int) -> np.ndarray:
        """The array that lies in a slot; every view of it has it as its base."""
        shape = (rows, *self._shape) if rows else self._shape
        start = PAGE + slot * self._stride * 8 + PREFIX_BYTES
        base: Any = np.ndarray(shape, self._dtype, self._readonly, start)
        self._views[slot] = (self._version, rows, base)
        return base

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``; fails if another receiver took over."""
        if number >= self._next:
            raise UsageError(f"frame {number} was not read yet")
        if not _release(self._state, number):
            raise RingRetired(f"{self.path}: another receiver took over")

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
        end = layout.end_of(self._map)
        return end[0] if end else None

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        if not self._control[layout.W_CLOSED]:  # a plain look suffices for "not yet"
            return False
        end = layout.end_of(self._map)
        return end is not None and self._next > end[1]

    @property
    def exhausted(self) -> bool:
        """The sender's end was sealed and all that counts was read."""
        if not self._control[layout.W_SEALED]:
            return False
        return self._next >= self._map[layout.W_SEALED]

    def _refuse(self, verdict: int) -> None:
        """Count why a frame cannot be read, and ask for it again if it is damaged."""
        at = _PAGE_WORDS + ((self._next - 1) % self._slots) * self._stride
        if atomics.load(self._words, at) > self._next and self._overrun():
            raise InvariantBroken(f"{self.path}: frame {self._next} was overwritten unread")
        self._asked = self._next
        if self._map.swap(layout.W_NACK, 0, self._next) == 0:
            self.counters["stale" if verdict == _STALE else "torn"] += 1
            self.counters["nacks"] += 1

    def _overrun(self) -> bool:
        return self._map[layout.W_RELEASED] & FRAME_MASK >= self._next

    def _assemble(self, number: int, size: int, fragment: int, more: int) -> np.ndarray | None:
        """Add a fragment to its message; the message, once it is complete."""
        if fragment == 0:
            self._partial = np.empty(int(np.prod(self._shape)) * self._dtype.itemsize, np.uint8)
        if self._partial is None:
            raise InvariantBroken(f"{self.path}: a series of fragments begins at {fragment}")
        start = PAGE + ((number - 1) % self._slots) * self._stride * 8 + PREFIX_BYTES
        offset = fragment * self._capacity
        self._partial[offset : offset + size] = self._octets[start : start + size]
        if more:
            return None
        whole, self._partial = self._partial.view(self._dtype).reshape(self._shape), None
        whole.flags.writeable = False
        return whole


_send_one, _send_rows = rk.send_one, rk.send_rows
_take, _take_plain, _release = rk.take, rk.take_plain, rk.release
_new_frame = tuple.__new__
_VERDICTS = tuple(Verdict)
