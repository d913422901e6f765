"""The receiving end of a stream: verified messages, and the commit that makes each one count."""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ftrt.errors import UsageError
from ftrt.host.board import Field
from ftrt.ledger.log import CONSUMED, LedgerClosed
from ftrt.runtime.faults import cuts_of
from ftrt.runtime.forked import Disowned
from ftrt.runtime.hot import Bell, Recorder
from ftrt.transport.factory import damage, is_stale, make_recv
from ftrt.transport.ring import RecvRing, RingRetired

# References to a slot's array that are ours: the channel's, the frame's, getrefcount's own.
_OWN_REFERENCES = 3
# After this part of the window slots are given back together, and the sender is woken once.
_GIVE_BACK = 4
_NO_RING = object()


class _Held:
    """A frame whose slot is not given back yet."""

    __slots__ = ("base", "left", "number")

    def __init__(self, number: int, left: int, base):
        self.number, self.left, self.base = number, left, base


class Effect(dict):
    """What one consumption does: keys set inside the ``with`` block are committed with the mark."""

    __slots__ = ("_message",)

    _message: Message

    def __enter__(self) -> Effect:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            message = self._message
            message._receiver._commit(message, self)


_new_message = object.__new__
_new_effect = dict.__new__  # an Effect needs no initialisation


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

    __slots__ = (
        *("_held", "_receiver", "array", "count", "records", "seq"),
        *("base", "left", "number"),  # in place of a _Held, of a message alone in its slot
    )

    base: Any
    left: int
    number: int

    def __init__(self, receiver, held: _Held | None, seq: int, count: int, array, records: bool):
        self._receiver = receiver
        self._held = held
        self.seq = seq
        self.count = count
        self.array = array
        self.records = records

    @property
    def source(self) -> int:
        """Rank that sent it."""
        return self._receiver.source

    @property
    def stream(self) -> str:
        """Stream that it belongs to."""
        return self._receiver.stream

    @property
    def seat(self):
        """The rank whose message it is: this one, or one that it inherited."""
        return self._receiver._runtime

    @property
    def token(self) -> tuple[str, str, int, int]:
        """``(job, stream, source, seq)``, for effects that the ledger does not cover."""
        receiver = self._receiver
        return (receiver._runtime.config.job, receiver.stream, receiver.source, self.seq)

    def consume(self) -> Effect:
        """The commit point: ``with message.consume() as effect: effect["state"] = …``."""
        effect = _new_effect(Effect)
        effect._message = self
        return effect

    def drop(self) -> None:
        """Commit that this message shall have no effect; it is never delivered again."""
        self._receiver._commit(self, {}, dropped=True)


class Receiver:
    """Iterates over the messages of one ``(stream, source)`` until the sender has closed it."""

    def __init__(self, runtime, stream: str, source: int):
        self._runtime = runtime
        self.stream, self.source = stream, source
        state = runtime.stream_state(stream, source, runtime.rank)
        self._marks = state.marks.copy()
        log = runtime.stream_log(CONSUMED, stream, source, runtime.rank)
        self._recorder: Any = Recorder(runtime, log)
        self._bell = Bell(runtime.job, source)
        self._link = runtime.link(stream, source, runtime.rank)
        self._ring: Any = None
        self._generation = -1
        self._taken_upto = 0
        self._top = self._marks.highest
        self._nacks = 0
        self._stages = runtime.stages
        self._flip = False
        self._cuts = cuts_of(runtime.config.faults, runtime.rank, source)
        self._frames: deque[_Held | Message] = deque()
        self._usual: Any = _NO_RING  # the ring while what comes is in order, whole and plain
        self._many = 0
        self._released = self._given = 0
        self._give_every = 1
        self._queue: deque[Message] = deque()
        self._rows: Iterator[Message] | None = None

    @property
    def next_seq(self) -> int:
        """Lowest number that is not consumed yet."""
        return self._marks.hwm + 1

    @property
    def seat(self):
        """The rank, as this process acts for it, that receives here."""
        return self._runtime

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
        if self._ring is self._usual:
            message = self._poll_usual()
            if message is not None:
                return message
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

    def look(self) -> Message | Receiver | None:
        """The next message if there is one, the receiver itself after the last, else None."""
        if self._rows is not None:
            message = next(self._rows, None)
            if message is not None:
                return message
            self._rows = None
        found = self._poll()
        if not isinstance(found, Message) or not found.records:
            return found
        self._rows = self._split(found)
        return next(self._rows)

    def receive_batch(self, timeout_s: float | None = None) -> Message | None:
        """The next frame: one message, or many small ones as the rows of one array."""
        if self._ring is self._usual:
            message = self._poll_usual()
            if message is not None:
                return message
        found = self._poll()
        if found is None:
            what = f"a message of stream {self.stream!r} from rank {self.source}"
            found = self._runtime.wait(self._poll, what, timeout_s)
        return None if found is self else found

    def batches(self) -> Iterator[Message]:
        """Iterate frame by frame; each is consumed as a whole, in one commit.

        Where the sender used ``send_batch``, ``message.array`` has one row for each of the
        ``message.count`` messages from ``message.seq`` on.
        """
        while (batch := self.receive_batch()) is not None:
            yield batch

    def _split(self, batch: Message) -> Iterator[Message]:
        held, seq, rows, batch.array = batch._held, batch.seq, batch.array, None
        last = batch.count - 1
        for row in range(last):
            yield Message(self, held, seq + row, 1, rows[row], False)
        row_array = rows[last]
        del rows  # or the frame would look as if somebody kept a part of it
        yield Message(self, held, seq + last, 1, row_array, False)

    def _poll_usual(self) -> Message | None:
        """The next message in the usual case, which is all in order; waits some microseconds."""
        frames, ring = self._frames, self._usual
        if frames:
            if frames[0].left <= 0:
                self._release()
            if len(frames) >= self._many:
                return None
        seq = self._taken_upto + 1
        base = ring.poll_plain(seq)
        if base is None:
            self._usual = _NO_RING  # until _poll finds that all is as usual again
            return None
        message = _new_message(Message)
        message._held = None
        message._receiver = self
        message.number = ring._next - 1
        message.base = base
        message.seq = self._taken_upto = seq
        message.left = message.count = 1
        message.array = base.view()
        message.records = False
        frames.append(message)
        return message

    def _poll(self):
        """A message, ``self`` at the end of the stream, or None when there is nothing yet."""
        if self._cuts and self._is_cut():
            return None
        if self._ring is None and not self._next_ring():
            return None
        ring, frames = self._ring, self._frames
        if frames and frames[0].left <= 0:
            self._release()
        if self._flip:
            self._damage(ring)
        if self._queue:
            return self._queue.popleft()
        while (frame := ring.poll()) is not None:
            message = self._take(frame)
            if message is not None:
                return message
        self._give_back()
        if ring.finished:
            return self
        if ring.exhausted:
            self._next_ring()
        elif ring.counters["nacks"] != self._nacks:
            self._nacks = ring.counters["nacks"]
            self._runtime.note("damaged", stream=self.stream, source=self.source)
            self._bell.ring()
        elif len(frames) >= ring.slots:
            self._all_slots_are_held()
        return None

    def _is_cut(self) -> bool:
        words, now = self._runtime.job.board.words, time.monotonic_ns()
        return any(int(words[index]) > now for index in self._cuts)

    def corrupt_next(self) -> None:
        """Fault injection: flip bits in the next slot that was delivered."""
        self._flip = True
        self._usual = _NO_RING

    def _damage(self, ring) -> None:
        try:
            damage(ring)
            self._flip = False
        except (UsageError, FileNotFoundError):
            pass  # nothing is delivered there yet, or any more

    def _next_ring(self) -> bool:
        found = make_recv(self._link, self._generation)
        if found is None:
            return False
        # Frames held of an older ring need no release: it is never written again.
        self._frames.clear()
        self._ring, self._generation = found
        self._released = self._given = self._nacks = 0
        self._usual = _NO_RING
        self._many = max(1, self._ring.slots // 2)
        self._give_every = max(1, self._ring.slots // _GIVE_BACK)
        return True

    def _take(self, frame) -> Message | None:
        """The first part of a frame that is neither consumed yet nor in the program's hands.

        Each channel of a link carries what is missing in ascending order, so that all up to the
        last number taken was consumed or taken, whichever channel brought it.
        """
        if self._stages is not None:
            self._stages.end(Field.RESENT)
            self._stages = None
        number, seq, count, records, _, array, _, base = frame
        if base is not None and self._must_copy(array):
            array, base = array.copy(), None
            if type(array) is np.ndarray:
                array.flags.writeable = False
        last = seq + count - 1
        if seq > self._taken_upto and seq > self._top:
            self._taken_upto = last
            held = _Held(number, count, base)
            self._frames.append(held)
            special = self._flip or self._cuts or records or self._rows
            plain = not special and type(self._ring) is RecvRing
            self._usual = self._ring if plain else _NO_RING
            return Message(self, held, seq, count, array, records)
        return self._take_parts(number, seq, last, array, base, records)

    def _take_parts(self, number: int, seq: int, last: int, array, base, records: bool):
        """Queue what is missing of a frame that is known in part."""
        self._usual = _NO_RING
        first = max(seq, self._taken_upto + 1)
        gaps = [(max(a, first), b) for a, b in self._marks.missing(last) if b >= first]
        self._taken_upto = max(self._taken_upto, last)
        held = _Held(number, sum(b - a + 1 for a, b in gaps), base)
        self._frames.append(held)
        for start, end in gaps:
            part = array
            if records and (start, end) != (seq, last):
                part = array[start - seq : end - seq + 1]
            self._queue.append(Message(self, held, start, end - start + 1, part, records))
        return self._queue.popleft() if gaps else None

    def _must_copy(self, array: np.ndarray) -> bool:
        """Whether to leave the slots: the program keeps so many that the window would end."""
        frames = self._frames
        kept = len(frames) >= self._ring.slots // 2 and frames[0].left <= 0
        return kept or array.nbytes == 0

    def _all_slots_are_held(self) -> None:
        first = self._frames[0]
        if first.left > 0:
            return
        gc.collect()  # a reference may be part of a cycle
        self._release()
        if len(self._frames) >= self._ring.slots:
            raise UsageError(
                f"receiver {self.stream!r} from rank {self.source}: the program keeps an array of "
                f"a message consumed long ago, and all {self._ring.slots} slots wait behind it: "
                "keep message.array.copy() instead, or ask the sender for a larger window="
            )

    # -- consuming ---------------------------------------------------------------------------

    def _commit(self, message: Message, effects: dict, dropped: bool = False) -> None:
        seq, count = message.seq, message.count
        if message.array is None:
            raise UsageError(
                f"rank {self._runtime.rank}: message {seq} of stream {self.stream!r} from rank "
                f"{self.source} was consumed or dropped already: a message has one effect, so put "
                "all of it into one `with message.consume()` block; nothing was applied now"
            )
        while True:
            try:
                if effects:
                    self._runtime.stage(effects, self._recorder.log, seq, count)
                self._recorder.record(seq, count, dropped)
                break
            except LedgerClosed:
                self._runtime.advance()
        self._marks.add(seq, count)
        if seq + count > self._top:
            self._top = seq + count - 1
        message.array = None
        held = message._held or message
        held.left -= count
        if held.left <= 0:
            self._release()

    def _release(self) -> None:
        """Find the slots that can be given back, in order, up to one that is still in use."""
        frames = self._frames
        while frames:
            held = frames[0]
            if held.left > 0:
                break
            if held.base is not None and sys.getrefcount(held.base) > _OWN_REFERENCES:
                break
            self._released = held.number
            frames.popleft()
        if self._released - self._given >= self._give_every:
            self._give_back()

    def _give_back(self) -> None:
        if self._released == self._given:
            return
        self._given = self._released
        try:
            self._ring.release(self._given)
        except RingRetired:
            self._runtime.advance()
        self._bell.ring()

    def serve(self) -> None:
        """Let the channel tell its sender what was given back."""
        if self._ring is not None:
            self._ring.serve()

    def disown(self) -> None:
        """Refuse to receive and commit from now on: this is a forked child."""
        self._recorder = Disowned(f"receiver {self.stream!r}")
        self._ring, self._rows = self._recorder, None

    def rebind(self, ledger) -> None:
        """Go on in the ledger of a new epoch."""
        if self._ring is not None and is_stale(self._link, self._ring):
            self._ring.supersede()
        log = ledger.stream(CONSUMED, self.stream, self.source, self._runtime.rank)
        self._recorder.log = log
