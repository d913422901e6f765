"""How messages become frames, for planes whose slots are private memory of each end."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ftrt.errors import InvariantBroken, UsageError
from ftrt.transport import meta
from ftrt.transport.base import Frame
from ftrt.transport.layout import SLOT_ALIGN, check_sizes
from ftrt.transport.slots import BATCH, FRAGMENT, MORE, PREFIX_BYTES, Verdict, publish


class Sent(NamedTuple):
    """What a sender remembers of a frame."""

    seq: int
    count: int  # type: ignore[assignment]  # tuple.count is not missed
    flags: int
    fragment: int


class SlotArea:
    """Slots in private memory; frame ``f`` lies in slot ``(f - 1) % slots``."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = check_sizes(slots, slot_bytes)
        self.stride = (PREFIX_BYTES + self.slot_bytes) // 8
        raw = np.zeros(slots * self.stride + SLOT_ALIGN // 8, np.uint64)
        skip = -raw.ctypes.data % SLOT_ALIGN // 8
        self.words = raw[skip : skip + slots * self.stride]
        self.octets = self.words.view(np.uint8)
        self.readonly = memoryview(self.octets.data).toreadonly()
        self.views = list(self.octets.reshape(slots, -1))

    def index(self, frame: int) -> int:
        """Slot of a frame."""
        return (frame - 1) % self.slots

    def word(self, frame: int) -> int:
        """First word of a frame's slot."""
        return (frame - 1) % self.slots * self.stride


class FrameWriter:
    """Cuts messages into frames and remembers those in the slots; ``_dispatch`` carries one away.

    A subclass gives ``_has_credit`` and ``_dispatch``.
    """

    def __init__(self, area: SlotArea, stream_id: int) -> None:
        self.area = area
        self._stream = stream_id
        self._sent = 0
        self._released = 0
        self._history: deque[Sent] = deque(maxlen=area.slots)

    def _has_credit(self, needed: int) -> bool:
        raise NotImplementedError

    def _dispatch(self, frame: int, size: int, again: bool) -> None:
        raise NotImplementedError

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.area.slots

    @property
    def slot_bytes(self) -> int:
        """Payload bytes of a slot."""
        return self.area.slot_bytes

    @property
    def frames_sent(self) -> int:
        """Number of the last frame sent."""
        return self._sent

    @property
    def frames_released(self) -> int:
        """Frames that the receiver is known to have given back."""
        return self._released

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""
        return self.slots - self._sent + self.frames_released

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message of any shape and dtype; False if there is no credit for all of it."""
        array = meta.as_array(array)
        needed = max(1, -(-array.nbytes // self.slot_bytes))
        if needed > self.slots:
            raise UsageError(
                f"a message of {needed} fragments cannot pass a channel of {self.slots} slots "
                f"of {self.slot_bytes} bytes: ask for more or larger slots"
            )
        if not self._has_credit(needed):
            return False
        if needed == 1:
            self._put(Sent(seq, 1, 0, 0), array, epoch)
            return True
        for fragment in range(needed):
            flags = FRAGMENT | (MORE if fragment + 1 < needed else 0)
            self._put(Sent(seq, 1, flags, fragment), array, epoch)
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
                f"records of {row_bytes} bytes do not fit into slots of {self.slot_bytes}: "
                "send them one by one"
            )
        step = min(rows, self.slot_bytes // row_bytes) if row_bytes else rows
        done = 0
        while done < rows and self._has_credit(1):
            part = records[done : done + step]
            self._put(Sent(first_seq + done, len(part), BATCH, 0), part, epoch)
            done += len(part)
        return done

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

    def _record(self, frame: int) -> Sent:
        age = self._sent - frame
        if not 0 <= age < len(self._history):
            raise UsageError(f"frame {frame} is not among the last {len(self._history)} sent")
        return self._history[-1 - age]

    def _put(self, sent: Sent, array: np.ndarray, epoch: int, frame: int = 0) -> None:
        """Write a frame into its slot and send it off: the next one, or ``frame`` again."""
        payload, total = meta.octets(array), 1
        if sent.flags & FRAGMENT:
            total = -(-array.nbytes // self.slot_bytes)
            start = sent.fragment * self.slot_bytes
            payload = payload[start : start + self.slot_bytes]
        words, meta_size = meta.encode(array.dtype, array.shape)
        number = frame or self._sent + 1
        publish(
            self.area.words,
            self.area.word(number),
            number,
            epoch << 32 | self._stream,
            sent.seq,
            payload,
            words,
            meta_size,
            sent.count << 32 | sent.flags,
            sent.fragment << 32 | total,
            False,  # the network stack reads the slot next: keep it in the caches
        )
        if not frame:
            self._sent = number
            self._history.append(sent)
        self._dispatch(number, PREFIX_BYTES + len(payload), bool(frame))


class FrameReader:
    """Builds frames from verified slots, in order."""

    def __init__(self, area: SlotArea, stream_id: int) -> None:
        self.area = area
        self._stream = stream_id
        self._next = 1
        self._next_seq = 0
        self._partial: np.ndarray | None = None
        self._bases: list[np.ndarray | None] = [None] * area.slots
        self.counters = dict.fromkeys(("ok", "empty", "stale", "torn", "duplicate", "nacks"), 0)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.area.slots

    @property
    def next_frame(self) -> int:
        """Number of the frame that comes next."""
        return self._next

    def _take(self, verdict: int) -> Frame | None:
        """The frame whose slot was verified; None for a fragment that is not the last."""
        number, at = self._next, self.area.word(self._next)
        _, ident, seq, size, _, tally, part, _ = self.area.words[at : at + 8].tolist()
        flags, count = tally & 0xFFFF_FFFF, tally >> 32
        start = at * 8 + 64
        text = self.area.readonly[start : start + (part >> 48)].tobytes()
        dtype, shape = meta.decode(text)
        self._next = number + 1
        start = at * 8 + PREFIX_BYTES
        if flags & FRAGMENT:
            whole = self._assemble(start, size, dtype, shape, part >> 32 & 0xFFFF)
            if flags & MORE:
                return None
            array = whole.view(dtype).reshape(shape)
            array.flags.writeable = False
            self._partial = base = None
        else:
            base = np.ndarray(shape, dtype, self.area.readonly, start)
            self._bases[self.area.index(number)] = base
            array = base.view()
        self._next_seq = max(self._next_seq, seq + count)
        self.counters["ok" if verdict == Verdict.OK else "duplicate"] += 1
        records, epoch = bool(flags & BATCH), ident >> 32
        return Frame(number, seq, count, records, epoch, array, Verdict(verdict), base)

    def _assemble(self, start: int, size: int, dtype, shape, fragment: int) -> np.ndarray:
        if fragment == 0:
            self._partial = np.empty(int(np.prod(shape)) * dtype.itemsize, np.uint8)
        if self._partial is None:
            raise InvariantBroken(f"a series of fragments begins at {fragment}")
        offset = fragment * self.area.slot_bytes
        self._partial[offset : offset + size] = self.area.octets[start : start + size]
        return self._partial
