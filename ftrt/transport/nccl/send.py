"""The sender's end of a channel between two GPUs.

A message, or a batch, becomes one group: a kernel copies it into slots and writes their headers,
NCCL sends the slots, and a note tells the receiver what to expect. The slots are the retained copy
until the receiver gives the group back. A group of a usual size is captured in a CUDA graph and
replayed: what changes from one to the next lies in host memory that the kernel reads.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ftrt.errors import DeadlineExceeded, FtrtError, PeerFailed, UsageError
from ftrt.transport.nccl import control, wire
from ftrt.transport.nccl.kernels_grid import grid_of
from ftrt.transport.nccl.slots import SlotMemory, addresses, fill
from ftrt.transport.nccl.states import GpuFailed
from ftrt.transport.ring import SendRing
from ftrt.transport.ring_admin import seal_sender
from ftrt.transport.slots import BATCH

#: From so many slots on, a group whose size was seen before goes out as a graph.
GRAPH_FROM = 8
_GRAPHS = 16


class _Group(NamedTuple):
    """A group that was not given back; ``end`` is the count of slots used up to its end."""

    note: control.Note
    slot: int
    end: int


class SendNccl:
    """The sender's end; see :class:`ftrt.transport.base.SendChannel`."""

    def __init__(
        self,
        plane: Any,
        path: Path,
        pair: Any,
        *,
        slots: int,
        slot_bytes: int,
        job: str,
        stream_id: int,
        generation: int,
        source: int,
        dest: int,
    ) -> None:
        self._device, self._plane, self.pair, self.peer = plane.device, plane, pair, pair.peer
        self._stream_id = stream_id
        self._mem: SlotMemory = plane.memory_of(slots, slot_bytes, pair)
        self.slots, self.slot_bytes = slots, self._mem.slot_bytes
        ring: dict[str, Any] = {"job": job, "stream_id": stream_id, "source": source, "dest": dest}
        self.path = path
        self._page = control.Page.create(
            path.with_name(f"page-{path.name}"), plane.process, pair.peer, pair.number
        )
        # The receiver looks for the ring: all else must be there by then.
        (path.with_name(f"pair-{path.name}")).write_text(pair.name)
        self._notes = SendRing.create(
            path,
            slots=max(8, slots),
            slot_bytes=control.NOTE_BYTES,
            generation=generation,
            first_seq=slots << 32 | self.slot_bytes,
            **ring,
        )
        self._sending = self._mem.streams[0]
        self._writer = control.Writer()
        self._groups: deque[_Group] = deque()
        self._group = self._released = self._healed = self._note = 0
        self._lap = self._next = self._used = self._freed = 0
        self._last_seq = 0
        self._seen: dict[tuple, int] = {}
        self.counters = {"eager": 0, "graph": 0, "again": 0}
        self._retired = False
        self.broken: FtrtError | None = None
        pair.bind(self._mem)
        pair.is_over = self._is_over

    # -- what the sender of the stream asks -----------------------------------------------------

    @property
    def frames_sent(self) -> int:
        """Number of the last group sent."""
        return self._group

    @property
    def frames_released(self) -> int:
        """Groups that the receiver has given back."""
        self._listen()
        return self._released

    @property
    def free_slots(self) -> int:
        """Slots that could be used now."""
        self._listen()
        return 0 if not self.pair.connected else self.slots - (self._used - self._freed)

    @property
    def oldest_seq_held(self) -> int:
        """First seq of the oldest group not given back; one past the last if there is none."""
        self._listen()
        if self._groups:
            return self._groups[0].note.seq
        return self._last_seq + 1

    def first_seq_of(self, frame: int) -> int:
        """First seq in a group that was not given back."""
        return self._held(frame).note.seq

    def count_of(self, frame: int) -> int:
        """Messages in a group that was not given back."""
        return self._held(frame).note.count

    def is_batch(self, frame: int) -> bool:
        """Whether a group carries records."""
        return self._held(frame).note.records

    def differs(self, frame: int, array: Any) -> bool:
        """Whether ``array`` cannot be what was sent: another size or dtype."""
        note = self._held(frame).note
        shape = tuple(array.shape[1:]) if note.records else tuple(array.shape)
        return (np.dtype(array.dtype), shape) != (note.dtype, note.shape)

    def _held(self, frame: int) -> _Group:
        for group in self._groups:
            if group.note.group == frame:
                return group
        raise UsageError(f"group {frame} is not held any more")

    # -- sending ------------------------------------------------------------------------------

    def try_send(self, seq: int, array: Any, epoch: int) -> bool:
        """Send one message of any shape and dtype; False if there is no credit for it."""
        array = self._plane.payload(array)
        span = self._span(array.nbytes)
        if span > self.slots:
            raise UsageError(
                f"a message of {array.nbytes} bytes cannot pass {self.slots} slots of "
                f"{self.slot_bytes} bytes: slot_bytes={-(-array.nbytes // self.slots)} is the "
                f"least that works"
            )
        slot = self._place(span, span)
        if slot is None:
            return False
        note = self._new_note(seq, 1, False, 1, slot, array.nbytes, epoch, array.dtype, array.shape)
        return self._send(note, slot, span, array)

    def try_send_batch(self, first_seq: int, records: Any, epoch: int) -> int:
        """Send the rows of ``records``; how many were taken.

        Small rows share a slot under one checksum, as many as fit; larger ones have one each.
        """
        records = self._plane.payload(records)
        rows = len(records)
        if not rows:
            return 0
        row_bytes = records.nbytes // rows
        if row_bytes > self.slot_bytes:
            raise UsageError(
                f"records of {row_bytes} bytes do not fit into slots of "
                f"{self.slot_bytes}: send them one by one"
            )
        packed = self._plane.packs and 2 * row_bytes <= self.slot_bytes
        wanted = 1 if packed else min(rows, self.slots // 2)
        slot = self._place(1, wanted)
        if slot is None:
            return 0
        if packed:
            count, slots = min(rows, self.slot_bytes // max(1, row_bytes)), 1
        else:
            count = slots = min(wanted, self._room_at(slot))
        part = records[:count]
        size = row_bytes * count if packed else row_bytes
        note = self._new_note(
            first_seq, count, True, slots, slot, size, epoch, part.dtype, part.shape[1:]
        )
        return count if self._send(note, slot, slots, part) else 0

    def _new_note(self, seq, count, records, slots, slot, size, epoch, dtype, shape):
        frame, kind = self._lap * self.slots + slot + 1, np.dtype(dtype)
        group = self._group + 1
        return control.Note(
            False, group, seq, count, records, slots, frame, size, epoch, kind, tuple(shape)
        )

    def _span(self, nbytes: int) -> int:
        """Slots that one message covers; a long one runs on over those behind its first."""
        return max(1, -(-wire.wire_bytes(nbytes) // self._mem.stride))

    def _room_at(self, slot: int) -> int:
        free = self.slots - (self._used - self._freed)
        return min(free, self.slots - slot)

    def _place(self, least: int, wanted: int) -> int | None:
        """First slot of a run of ``least`` free ones that does not wrap; None if there is none."""
        if self.broken or self._retired or self.pair.retired or not self.pair.connected:
            return None
        if self.slots - (self._used - self._freed) < wanted:
            self._listen()
        if not self._groups and self._next:  # all is free: begin anew, nothing is skipped
            self._freed = self._used
            self._next, self._lap = 0, self._lap + 1
        if self._room_at(self._next) >= least:
            return self._next
        skipped = self.slots - self._next
        if self.slots - (self._used - self._freed) - skipped < least:
            return None
        self._used += skipped
        self._next, self._lap = 0, self._lap + 1
        return 0

    def _send(self, note: control.Note, slot: int, covers: int, payload: Any) -> bool:
        if not self._tell(note):
            return False
        self._used += covers
        self._next = slot + covers
        if self._next == self.slots:
            self._next, self._lap = 0, self._lap + 1
        self._group = note.group
        self._last_seq = note.seq + note.count - 1
        self._groups.append(_Group(note, slot, self._used))
        self._post(note, slot, payload)
        return True

    def _tell(self, note: control.Note) -> bool:
        self._note += 1
        if self._notes.try_send(self._note, self._writer.write(note), note.epoch):
            return True
        self._note -= 1
        return False

    def _post(self, note: control.Note, slot: int, payload: Any) -> None:
        """Publish a group's slots and send them."""
        count = note.slots
        try:
            key = (slot, count, note.frame_bytes)
            if count >= GRAPH_FROM and self._plane.path != "eager" and self._usual(key):
                self._replay(key, note, slot, payload)
            else:
                self._post_eagerly(note, slot, payload)
        except (PeerFailed, DeadlineExceeded) as failure:
            self._break(failure)

    def _break(self, failure: FtrtError) -> None:
        """Go on in another channel; without the GPU there is none."""
        self.broken = failure
        if isinstance(failure, GpuFailed) and self._device.is_lost():
            raise failure

    def _publish(self, note: control.Note, slot: int, payload: Any) -> None:
        """Copy the payload into its slots and let the sends wait for that.

        The copy is queued in the application's stream: so it sees what was written to the payload
        before, and what is written later does not reach it.
        """
        device, mem, count, size = self._device, self._mem, note.slots, note.frame_bytes
        each = note.count // count
        ident, flags = note.epoch << 32 | self._stream_id, BATCH if note.records else 0
        source = device.address(payload)
        fill(mem.table, slot, count, source, size, note.frame, ident, note.seq, each, flags)
        stream = device.application()
        device.publish(
            stream,
            grid_of(size, count),
            *(mem.memory.address, mem.stride, mem.slots),
            *(mem.table_address + slot * wire.ROW_WORDS * 8, mem.scratch.address),
        )
        copied = device.mark(stream)
        mem.used = [copied]
        device.wait(self._sending, copied)
        device.published(stream)

    def _transfer(self, slot: int, count: int, size: int) -> None:
        sizes = np.full(count, wire.wire_bytes(size), np.int64)
        self.pair.comm.send(
            self.pair.other, addresses(self._mem, slot, count), sizes, self._sending.handle
        )

    def _post_eagerly(self, note: control.Note, slot: int, payload: Any) -> None:
        self._publish(note, slot, payload)
        self._transfer(slot, note.slots, note.frame_bytes)
        self.counters["eager"] += 1

    def _usual(self, key: tuple) -> bool:
        if self.pair.has_graph(key):
            return True
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if len(self._seen) > 64 * _GRAPHS:
            self._seen.clear()
        return seen > 1 and self.pair.graphs < _GRAPHS

    def _replay(self, key: tuple, note: control.Note, slot: int, payload: Any) -> None:
        """Publish, then replay the sends of this place and size."""
        self._publish(note, slot, payload)
        count, size = note.slots, note.frame_bytes
        self.pair.replay(key, self._sending, lambda: self._transfer(slot, count, size))
        self.counters["graph"] += 1

    # -- what the receiver tells ----------------------------------------------------------------

    def _listen(self) -> None:
        released = self._page.get(control.G_RELEASED)
        if released != self._released:
            self._released = released
            groups = self._groups
            while groups and groups[0].note.group <= released:
                self._freed = groups.popleft().end

    def nacked(self) -> int | None:
        """Number of the group that arrived damaged, if any."""
        if self._page.get(control.G_NACKS) == self._healed or self._retired:
            return None
        return self._page.get(control.G_NACK) or None

    def rewrite(self, frame: int, array: Any, epoch: int) -> None:
        """Send a damaged group again, from a pristine copy of its message or records."""
        if self.nacked() != frame:
            raise UsageError(f"group {frame} was not asked for again")
        held = self._held(frame)
        payload = self._plane.payload(array)
        note = held.note._replace(again=True, epoch=epoch)
        if not self._tell(note):
            return  # asked for again at the next look
        self._healed = self._page.get(control.G_NACKS)
        self.counters["again"] += 1
        if not self.broken:
            try:
                self._post_eagerly(note, held.slot, payload)
            except (PeerFailed, DeadlineExceeded) as failure:
                self._break(failure)

    # -- the end --------------------------------------------------------------------------------

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message."""
        self._notes.close(last_seq)

    def give_up(self) -> int:
        """Send nothing more; the first number that the receiver may not have."""
        held = self.oldest_seq_held
        self._page.put(control.G_SEALED, self._released + 1)
        seal_sender(self.path)
        self.retire()
        return held

    def retire(self) -> None:
        """A later generation took over; memory is given back once nothing can use it any more."""
        if self._retired:
            return
        self._retired = True
        self._plane.pairs.retire(self.pair)

    @property
    def failed(self) -> str | None:
        """Why nothing can be sent here any more."""
        if self._retired:
            return None
        if self._page.get(control.G_BROKEN):
            return "the receiver's end does not work"
        if self.broken is not None:
            return str(self.broken)
        if self.pair.failure is not None:
            return self.pair.failure
        if self.pair.retired and self._plane.alive(self.peer):
            return "its communicator was given up"
        return None

    def _is_over(self) -> bool:
        """Asked by the thread that looks after communicators: ours may be stuck in CUDA."""
        return self._retired or bool(self._page.get(control.G_BROKEN))

    def check(self) -> None:
        """Look for an asynchronous error of the communicator."""
        if self._retired or self.broken or not self.pair.connected:
            return
        try:
            self.pair.comm.check()
        except (PeerFailed, DeadlineExceeded) as failure:
            self._break(failure)
