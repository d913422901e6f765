"""The receiver's end of a channel between two GPUs.

Notes say which groups come; the receives for a group are posted as soon as its note is read, a
kernel checks what arrived and writes its verdicts into host memory. A group is delivered once all
of its slots are sound; one that is not is asked for again, and nothing passes it meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ftrt.errors import DeadlineExceeded, FtrtError, PeerFailed, UsageError
from ftrt.transport.base import Frame
from ftrt.transport.nccl import control, wire
from ftrt.transport.nccl.kernels_grid import grid_of
from ftrt.transport.nccl.send import GRAPH_FROM
from ftrt.transport.nccl.slots import SlotMemory, addresses, expect, verdict
from ftrt.transport.nccl.states import GpuFailed
from ftrt.transport.ring import RecvRing
from ftrt.transport.slots import Verdict

_GRAPHS = 16
_SOUND = 1
#: Up to so many bytes a group is checked in the graph that receives it: a launch costs more.
_CHECK_WITHIN_BYTES = 1 << 18
#: How often the library is asked for an asynchronous error.
_CHECK_EVERY_S = 0.001
_NAMES = {
    Verdict.EMPTY: "empty",
    Verdict.STALE: "stale",
    Verdict.TORN: "torn",
    Verdict.DUPLICATE: "duplicate",
}


class _Posted(NamedTuple):
    """A group whose receives are posted; ``operation`` is the number of its first check."""

    note: control.Note
    slot: int
    operation: int
    at_s: float


class _Owner:
    """What every array over one group refers to."""

    __slots__ = ("memory",)

    def __init__(self, memory: SlotMemory) -> None:
        self.memory = memory


class RecvNccl:
    """The receiver's end; see :class:`ftrt.transport.base.RecvChannel`."""

    def __init__(self, plane: Any, path: Path, pair: Any) -> None:
        self._device, self._plane, self.pair, self.peer = plane.device, plane, pair, pair.peer
        self._notes = RecvRing.attach(path)
        sizes = self._notes.first_seq
        self.slots = sizes >> 32
        self._mem: SlotMemory = plane.memory_of(self.slots, sizes & 0xFFFFFFFF, pair)
        self.path = path
        self.slot_bytes = self._mem.slot_bytes
        self._page = control.Page(path.with_name(f"page-{path.name}"))
        self._stream_id = int(self._notes._map[_stream_word()])
        self._receiving, self._checking = self._mem.streams
        self._posted: deque[_Posted] = deque()
        self._again: _Posted | None = None
        self._owners: dict[int, tuple[int, _Owner]] = {}
        self._operation = 1
        self._delivered = self._released = self._told = self._nacks = 0
        self._since_s = 0.0
        self._sealed_upto: int | None = None
        self._damage = self._superseded = self._retired = False
        self._seen: dict[tuple, int] = {}
        self._checked_s = 0.0
        self.counters = dict.fromkeys(("ok", "empty", "stale", "torn", "duplicate", "nacks"), 0)
        self.broken: FtrtError | None = None
        pair.bind(self._mem)
        pair.is_over = self._is_over

    # -- receiving ------------------------------------------------------------------------------

    def poll(self) -> Frame | None:
        """The next group, or None if none can be read now."""
        self._read_notes()
        head = self._again or (self._posted[0] if self._posted else None)
        if head is None or head.note.group != self._delivered + 1:
            return None
        found = verdict(self._mem.table, head.slot, head.note.slots, head.operation)
        if found != _SOUND:
            if found:
                self._refuse(head)
            elif self.is_overdue():
                self._break_overdue()
            return None
        if self._again is not None:
            self._again = None
        else:
            self._posted.popleft()
        return self._deliver(head)

    def is_overdue(self) -> bool:
        """Whether a group that was announced has not come in time.

        Nothing on the host says so when an operation on the device waits for a peer that will
        never post its own.
        """
        try:
            head = self._again or self._posted[0]
        except IndexError:
            return False
        late = time.monotonic() - max(head.at_s, self._since_s) > self._plane.transfer_timeout_s
        return late and not verdict(self._mem.table, head.slot, head.note.slots, head.operation)

    def _is_over(self) -> bool:
        """Asked by the thread that looks after communicators: ours may be stuck in CUDA."""
        if self._superseded or self.broken or self._page.get(control.G_SEALED):
            return True
        if self.is_overdue():
            self._break_overdue()
            return True
        return False

    def _break_overdue(self) -> None:
        limit_s = self._plane.transfer_timeout_s
        self._break(PeerFailed(f"a group was announced and did not come in {limit_s:g} s"))

    def _break(self, failure: FtrtError) -> None:
        """The sender goes on in another channel; without the GPU there is none."""
        self.broken = failure
        self._page.put(control.G_BROKEN, 1)
        if isinstance(failure, GpuFailed) and self._device.is_lost():
            raise failure

    def _deliver(self, head: _Posted) -> Frame:
        note, mem = head.note, self._mem
        self.counters["ok"] += note.slots
        self._delivered, self._since_s = note.group, time.monotonic()
        owner = _Owner(mem)
        self._owners[head.slot] = (note.group, owner)
        address = mem.address_of(head.slot) + wire.HEADER_BYTES
        shape = (note.count, *note.shape) if note.records else note.shape
        outer = mem.stride if note.records and note.slots > 1 else None
        array = self._device.view(address, note.dtype, shape, owner, outer)
        records, epoch = note.records, note.epoch
        return Frame(
            note.group,
            note.seq,
            note.count,
            records,
            epoch,
            array,
            Verdict.OK,
            owner,  # type: ignore[arg-type]
        )

    def _read_notes(self) -> None:
        """Post the receives of the groups that are on their way."""
        if self._superseded or self._retired or self.broken or self.pair.retired:
            return
        if not self.pair.connected:
            if self.pair.failure is not None:
                self._break(PeerFailed(self.pair.failure))
            return
        while (frame := self._notes.poll()) is not None:
            note = control.read(frame.array)
            self._notes.release(frame.number)
            try:
                self._post(note)
            except (PeerFailed, DeadlineExceeded) as failure:
                self._break(failure)
                return

    def _post(self, note: control.Note) -> None:
        mem, count = self._mem, note.slots
        slot = (note.frame - 1) % mem.slots
        operation = self._operation
        self._operation += count
        expect(mem.table, mem.params, slot, count, operation, note.frame)
        # What the application had queued when it gave slots back may still read them.
        for event in mem.used:
            self._device.wait(self._receiving, event)
        mem.used = []
        key = (slot, count, note.frame_bytes)
        usual = count >= GRAPH_FROM and self._plane.path != "eager" and not note.again
        if usual and not self._damage and self._usual(key):
            self._replay(key)
        else:
            self._receive(*key)
            if self._damage:
                self._damage = False
                at = mem.address_of(slot) + (wire.HEADER_BYTES if note.frame_bytes else 16)
                self._device.spoil(self._receiving, at)
            self._device.wait(self._checking, self._device.mark(self._receiving))
            self._check(self._checking, *key)
        posted = _Posted(note, slot, operation, time.monotonic())
        if note.again:
            self._again = posted
        else:
            self._posted.append(posted)

    def _receive(self, slot: int, count: int, size: int) -> None:
        sizes = np.full(count, wire.wire_bytes(size), np.int64)
        self.pair.comm.receive(
            self.pair.other, addresses(self._mem, slot, count), sizes, self._receiving.handle
        )

    def _check(self, stream: Any, slot: int, count: int, size: int) -> None:
        mem = self._mem
        self._device.verify(
            stream,
            grid_of(size, count),
            *(mem.memory.address, mem.stride, mem.slots),
            *((mem.slots - slot) * mem.stride - wire.HEADER_BYTES, self._stream_id, 0),
            *(mem.params_address + slot * wire.ROW_WORDS * 8, mem.scratch.address),
            mem.table_address,
        )

    def _usual(self, key: tuple) -> bool:
        if self.pair.has_graph(key):
            return True
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if len(self._seen) > 64 * _GRAPHS:
            self._seen.clear()
        return seen > 1 and self.pair.graphs < _GRAPHS

    def _replay(self, key: tuple) -> None:
        self.pair.replay(key, self._receiving, lambda: self._captured(*key))
        if key[1] * key[2] > _CHECK_WITHIN_BYTES:
            self._device.wait(self._checking, self._device.mark(self._receiving))
            self._check(self._checking, *key)

    def _captured(self, slot: int, count: int, size: int) -> None:
        self._receive(slot, count, size)
        if count * size <= _CHECK_WITHIN_BYTES:
            self._check(self._receiving, slot, count, size)

    def _refuse(self, head: _Posted) -> None:
        """Count what is wrong with a group, and ask for it again."""
        for word in self._mem.table[head.slot : head.slot + head.note.slots, 0].tolist():
            name = _NAMES.get(Verdict(word & 7))
            if name is not None:
                self.counters[name] += 1
        if self._again is None:
            self._posted.popleft()
        self._again = head._replace(operation=-1)  # until it comes
        self._nacks += 1
        self.counters["nacks"] += 1
        self._page.put(control.G_NACK, head.note.group)
        self._page.put(control.G_NACKS, self._nacks)

    # -- giving back ----------------------------------------------------------------------------

    def release(self, number: int) -> None:
        """Give back all groups up to ``number``."""
        if number > self._delivered:
            raise UsageError(f"group {number} was not read yet")
        self._released = max(self._released, number)
        # Now, and not when the slots are used again: the application's stream is the current one
        # here, and there perhaps no more.
        self._mem.used = [e for e in self._mem.used if not e.done()] + self._device.readers()
        self._owners = {s: o for s, o in self._owners.items() if o[0] > self._released}
        if not self._superseded:
            self._page.put(control.G_RELEASED, self._released)

    def serve(self) -> None:
        """Post the receives of what is on its way, also while the application does other things."""
        self._read_notes()
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_EVERY_S or self._superseded or self.broken:
            return
        self._checked_s = now_s
        try:
            self.pair.comm.check()
        except (PeerFailed, DeadlineExceeded) as failure:
            if not self.pair.retired:
                self._break(failure)

    @property
    def next_frame(self) -> int:
        """Number of the group that :meth:`poll` looks for."""
        return self._delivered + 1

    @property
    def closed_seq(self) -> int | None:
        """Last seq of the stream, once the sender has closed it."""
        return self._notes.closed_seq

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        return self._notes.finished and not self._posted and self._again is None

    @property
    def exhausted(self) -> bool:
        """The sender gave this generation up, or was replaced, and all that is here was read.

        What has not arrived by then never will, or arrives where nobody looks any more.
        """
        return bool(self._superseded or self._page.get(control.G_SEALED) or self.broken)

    def supersede(self) -> None:
        """The sender's process was replaced: what has not arrived will be sent anew."""
        self._superseded = True

    def retire(self) -> None:
        """A later generation took over. Groups that are still held stay where they are."""
        if self._retired:
            return
        self._retired = self._superseded = True
        self._owners.clear()
        self._plane.pairs.retire(self.pair)

    def damage(self, _frame: int) -> None:
        """Fault injection: flip bits in the next group that arrives, before it is checked."""
        self._damage = True


def _stream_word() -> int:
    from ftrt.transport import layout

    return int(layout.W_STREAM)
