"""The receiving end of a stream: verified messages, and the commit that makes each one count."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ftrt.errors import UsageError
from ftrt.ledger.log import CONSUMED, LedgerClosed
from ftrt.transport.factory import damage, is_stale, make_recv
from ftrt.transport.ring import RingRetired

# References to a payload that nobody but its message holds: the attribute and getrefcount's own.
_OWN_REFERENCES = 3


class Effect(dict):
    """What one consumption does: keys set inside the ``with`` block are committed with the mark."""

    __slots__ = ("_message",)

    def __init__(self, message):
        self._message = message

    def __enter__(self) -> Effect:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            message = self._message
            message._receiver._commit(message, self)


class Message:
    """One verified message.

    Attributes
    ----------
    array : numpy.ndarray
        The payload, read-only, dtype and shape as sent. It lies in the receive slot; the slot is
        kept for as long as the array is referenced.
    seq, source, stream
        Its name; together with the job's id they are its :attr:`token`.
    count : int
        1, or the number of messages of a batch (``array`` then has one row for each).
    """

    __slots__ = ("_base", "_frame", "_receiver", "_ring", "array", "count", "records", "seq")

    def __init__(self, receiver, frame: int, seq: int, count: int, base, array):
        self._receiver, self._frame, self._ring = receiver, frame, receiver._ring
        self.seq, self.count = seq, count
        self._base, self.array = base, array
        self.records = False

    @property
    def source(self) -> int:
        """Rank that sent it."""
        return self._receiver.source

    @property
    def stream(self) -> str:
        """Stream that it belongs to."""
        return self._receiver.stream

    @property
    def token(self) -> tuple[str, str, int, int]:
        """``(job, stream, source, seq)``, for effects that the ledger does not cover."""
        receiver = self._receiver
        return (receiver._runtime.config.job, receiver.stream, receiver.source, self.seq)

    def consume(self) -> Effect:
        """The commit point: ``with message.consume() as effect: effect["state"] = …``."""
        return Effect(self)

    def drop(self) -> None:
        """Commit that this message shall have no effect; it is never delivered again."""
        self._receiver._commit(self, {}, dropped=True)


class Receiver:
    """Iterates over the messages of one ``(stream, source)`` until the sender has closed it."""

    def __init__(self, runtime, stream: str, source: int):
        if not 0 <= source < runtime.size or source == runtime.rank:
            raise UsageError(
                f"receiver {stream!r}: source {source} is not another rank of 0..{runtime.size - 1}"
            )
        self._runtime = runtime
        self.stream, self.source = stream, source
        state = runtime.stream_state(stream, source, runtime.rank)
        self._marks = state.marks.copy()
        self._log = runtime.stream_log(CONSUMED, stream, source, runtime.rank)
        self._link = runtime.link(stream, source, runtime.rank)
        self._ring: Any = None
        self._generation = -1
        self._taken_upto = 0
        self._nacks = 0
        self._flip = False
        self._open: dict[int, int] = {}
        self._pinned: dict[int, weakref.ref] = {}
        self._queue: deque[Message] = deque()
        self._rows: Iterator[Message] | None = None

    @property
    def next_seq(self) -> int:
        """Lowest number that is not consumed yet."""
        return self._marks.hwm + 1

    # -- receiving -----------------------------------------------------------------------------

    def __iter__(self) -> Receiver:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, None after the last one of a closed stream."""
        while True:
            if self._rows is not None:
                message = next(self._rows, None)
                if message is not None:
                    return message
                self._rows = None
            batch = self.receive_batch(timeout_s)
            if batch is None or not batch.records:
                return batch
            self._rows = self._split(batch)

    def receive_batch(self, timeout_s: float | None = None) -> Message | None:
        """The next frame: one message, or many small ones as the rows of one array."""
        what = f"a message of stream {self.stream!r} from rank {self.source}"
        found = self._runtime.wait(self._poll, what, timeout_s)
        return None if found is self else found

    def batches(self) -> Iterator[Message]:
        """Iterate frame by frame; each is consumed as a whole, in one commit."""
        while (batch := self.receive_batch()) is not None:
            yield batch

    def _split(self, batch: Message) -> Iterator[Message]:
        for row in range(batch.count):
            yield Message(self, batch._frame, batch.seq + row, 1, batch._base, batch.array[row])

    def _poll(self):
        """A message, ``self`` at the end of the stream, or None when there is nothing yet."""
        if self._ring is None and not self._next_ring():
            return None
        ring = self._ring
        self._unpin()
        if self._flip:
            self._damage(ring)
        while not self._queue and (frame := ring.poll()) is not None:
            self._take(frame)
        if self._queue:
            return self._queue.popleft()
        if ring.finished:
            return self
        if ring.exhausted:
            self._next_ring()
        elif ring.counters["nacks"] != self._nacks:
            self._nacks = ring.counters["nacks"]
            self._runtime.note("damaged", stream=self.stream, source=self.source)
            self._runtime.job.wake(self.source)
        return None

    def corrupt_next(self) -> None:
        """Fault injection: flip bits in the next slot that was delivered."""
        self._flip = True

    def _damage(self, ring) -> None:
        try:
            damage(ring)
            self._flip = False
        except UsageError:
            pass  # nothing is delivered there yet

    def _next_ring(self) -> bool:
        found = make_recv(self._link, self._generation)
        if found is None:
            return False
        self._open_frames_stay()
        self._ring, self._generation = found
        self._nacks = 0
        return True

    def _open_frames_stay(self) -> None:
        """Open frames of an older ring need no release: it is never written again."""
        self._open = {}
        self._pinned = {}

    def _take(self, frame) -> None:
        """Queue the parts of a frame that are neither consumed yet nor in the program's hands.

        Each channel of a link carries what is missing in ascending order, so that all up to the
        last number taken was consumed or taken, whichever channel brought it.
        """
        last = frame.seq + frame.count - 1
        first = max(frame.seq, self._taken_upto + 1)
        gaps = [(max(a, first), b) for a, b in self._marks.missing(last) if b >= first]
        self._taken_upto = max(self._taken_upto, last)
        self._open[frame.number] = sum(b - a + 1 for a, b in gaps)
        for start, end in gaps:
            array = frame.array
            if frame.records and (start, end) != (frame.seq, last):
                array = array[start - frame.seq : end - frame.seq + 1]
            base, view = self._own_view(array)
            message = Message(self, frame.number, start, end - start + 1, base, view)
            message.records = frame.records
            self._queue.append(message)
        if not gaps:
            self._done(frame.number, 0)

    def _own_view(self, array: np.ndarray):
        """A read-only view whose base tells us whether anybody still holds a part of it."""
        if array.nbytes == 0 or len(self._pinned) >= self._ring.slots // 2:
            copy = array.copy()
            copy.flags.writeable = False
            return copy, copy
        flat = np.frombuffer(memoryview(array.reshape(-1).view(np.uint8).data), np.uint8)
        flat.flags.writeable = False
        return flat, flat.view(array.dtype).reshape(array.shape)

    # -- consuming ---------------------------------------------------------------------------

    def _commit(self, message: Message, effects: dict, dropped: bool = False) -> None:
        rt = self._runtime
        while True:
            try:
                if effects:
                    rt.stage(effects, self._log, message.seq, message.count)
                self._log.append(message.seq, message.count, dropped)
                break
            except LedgerClosed:
                rt.advance()
        self._marks.add(message.seq, message.count)
        base = message._base
        message.array = None
        if message._ring is self._ring:
            self._done(message._frame, message.count, base)
        rt.count(message.count)

    def _done(self, number: int, count: int, base=None) -> None:
        left = self._open.get(number, 0) - count
        self._open[number] = left
        if left > 0:
            return
        if base is not None and sys.getrefcount(base) > _OWN_REFERENCES + 1:
            self._pinned[number] = weakref.ref(base)
        self._release()

    def _unpin(self) -> None:
        if self._pinned:
            gone = [n for n, ref in self._pinned.items() if ref() is None]
            for number in gone:
                del self._pinned[number]
            if gone:
                self._release()

    def _release(self) -> None:
        """Give slots back in order, up to the first that is still open or referenced."""
        upto = 0
        for number in sorted(self._open):
            if self._open[number] > 0 or number in self._pinned:
                break
            upto = number
        if not upto:
            return
        for number in [n for n in self._open if n <= upto]:
            del self._open[number]
        try:
            self._ring.release(upto)
        except RingRetired:
            self._runtime.advance()
        self._runtime.job.wake(self.source)

    def serve(self) -> None:
        """Let the channel tell its sender what was given back."""
        if self._ring is not None:
            self._ring.serve()

    def rebind(self, ledger) -> None:
        """Go on in the ledger of a new epoch."""
        if self._ring is not None and is_stale(self._link, self._ring):
            self._ring.supersede()
        self._log = ledger.stream(CONSUMED, self.stream, self.source, self._runtime.rank)
