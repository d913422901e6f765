"""A rank's ledger of one epoch, as its owner writes it."""

from __future__ import annotations

import threading
import zlib

import numpy as np

from .. import atomics
from ..errors import LedgerError, UsageError
from . import commit, layout
from .layout import CLOSED, CONSUMED, SENT
from .pool import LedgerPool
from .segment import Segment
from .steps import step

__all__ = ["CONSUMED", "SENT", "Ledger", "LedgerClosed", "StreamLog"]


class LedgerClosed(LedgerError):
    """The epoch of this ledger has ended; the commit was not applied.

    Attributes
    ----------
    applied : int
        Events of an ``append_seqs`` that spilled over into a new segment and had been committed
        before; 0 in every other case.
    """

    applied = 0


class _Part:
    """A segment as its owner sees it: what is taken of its tables."""

    def __init__(self, segment: Segment, number: int):
        self.segment, self.number = segment, number
        self.streams = self.pages = 0

    @property
    def free_pages(self) -> int:
        return self.segment.pages.size - self.pages

    def register(self, kind: int, name: bytes, source: int, dest: int) -> int:
        """Take the next entry of the stream table; LedgerClosed if the epoch ended."""
        index, segment = self.streams, self.segment
        entry = segment.streams[index : index + 1]
        entry["kind"], entry["name"], entry["source"], entry["dest"] = kind, name, source, dest
        entry["state"] = 1
        entry["check"] = zlib.crc32(segment.entry_bytes(index))
        step("stream.filled")
        empty = int(layout.head_word(0, 0))
        if atomics.swap_if(segment.whole, segment.head_index(index), 0, empty) != 0:
            raise LedgerClosed(f"{segment.path}: its epoch has ended")
        step("stream.registered")
        self.streams += 1
        return index

    def give_page(self, index: int, cursor: np.ndarray) -> None:
        """Add the next free page to a stream."""
        at, owned = self.segment.at_pages + self.pages, cursor[commit.CAPACITY]
        atomics.store(self.segment.whole, at, layout.guard(index + 1))
        step("page.owned")
        cursor[commit.PAGES + owned // layout.PAGE_WORDS] = self.pages
        cursor[commit.CAPACITY] = owned + layout.PAGE_WORDS
        self.pages += 1


class StreamLog:
    """Events of one stream at one end: consumed here, or sent from here.

    Made by :meth:`Ledger.stream`. Its calls are for one thread.
    """

    def __init__(self, ledger: Ledger, kind: int, name: str, source: int, dest: int):
        self.kind, self.name, self.source, self.dest = kind, name, source, dest
        self._ledger, self._earlier = ledger, 0
        self._enter(ledger._parts[-1])

    def __repr__(self) -> str:
        kind = {CONSUMED: "consumed", SENT: "sent"}[self.kind]
        return f"<StreamLog {self.name} {self.source}->{self.dest} {kind} {self.events}>"

    @property
    def events(self) -> int:
        """Events committed in this ledger, over all its segments."""
        return self._earlier + int(self._cursor[commit.EVENTS])

    @property
    def index(self) -> int:
        """Place in the stream table of the current segment."""
        return self._index

    def append(self, seq: int, count: int = 1, dropped: bool = False) -> None:
        """Commit ``count`` events ``seq, seq + 1, ...``: all of them or, with an error, none.

        Raises
        ------
        LedgerClosed
            The epoch has ended.
        """
        status = commit.append(self._whole, self._cursor, seq, count, dropped)
        if status:
            self._append_slowly(status, seq, count, dropped)

    def append_seqs(self, seqs: np.ndarray) -> None:
        """Commit one event per number of a uint64 array, in that order, in one swap.

        A batch that does not fit into one segment takes one swap per segment; LedgerClosed then
        says in ``applied`` how many events were committed before.
        """
        seqs = np.ascontiguousarray(seqs, np.uint64)
        done = 0
        try:
            for part in self._pieces(seqs):
                done += part
        except LedgerClosed as error:
            error.applied = done
            raise

    def next_ref(self, seq: int, count: int = 1) -> tuple[int, int, int, int]:
        """``(epoch, stream index, segment, event)`` that the next ``append`` of these will reach.

        Room for it is made now, so that the append cannot move to another segment.
        """
        cursor, seq, count = self._cursor, int(seq), int(count)
        offset = seq - int(cursor[commit.BASE])
        words = self._head()[0]
        if cursor[commit.BASE] < 0 or not 0 <= offset < layout.SEQ_SPAN:
            self._make_room(commit.RANGE, seq)
        elif words >= cursor[commit.CAPACITY]:
            self._make_room(commit.FULL, seq)
        event = int(self._cursor[commit.EVENTS]) + count
        return self._ledger.epoch, self._index, self._part.number, event

    def finish(self, last: int) -> None:
        """Record that ``last`` is the last number of this stream (0: nothing was sent)."""
        if self.kind != SENT:
            raise UsageError(f"stream {self.name!r}: only its sender can finish it")
        at = self._cursor[commit.HEAD] - layout.HEAD_AT + layout.LAST_AT
        atomics.store(self._whole, at, layout.guard(int(last) + 1))
        step("last.stored")
        head = int(atomics.load(self._whole, self._cursor[commit.HEAD]))
        # Whoever closes after this swap sees the number stored before it.
        held = atomics.swap_if(self._whole, self._cursor[commit.HEAD], head, head)
        if head & CLOSED or int(held) != head:
            self._raise_closed()
        step("last.published")

    def _head(self) -> tuple[int, int, bool, bool]:
        return layout.split_head(int(atomics.load(self._whole, self._cursor[commit.HEAD])))

    def _raise_closed(self) -> None:
        step("commit.refused")
        raise LedgerClosed(f"{self._part.segment.path}: its epoch has ended")

    def _append_slowly(self, status: int, seq: int, count: int, dropped: bool) -> None:
        seq, count = int(seq), int(count)
        if not 0 <= seq < layout.SEQ_LIMIT or not 0 < count <= layout.MAX_RUN:
            raise UsageError(f"stream {self.name!r}: cannot record {count} events from {seq}")
        while status:
            if status == commit.SHUT:
                self._raise_closed()
            self._make_room(status, seq)
            status = commit.append(self._whole, self._cursor, seq, count, dropped)

    def _pieces(self, seqs: np.ndarray):
        """Commit ``seqs`` in as few pieces as fit; yields the size of each."""
        while seqs.size:
            status = commit.append_batch(self._whole, self._cursor, seqs)
            if status == commit.DONE:
                yield seqs.size
                return
            if status == commit.SHUT:
                self._raise_closed()
            if status == commit.RANGE and int(seqs.max()) >= layout.SEQ_LIMIT:
                raise UsageError(f"stream {self.name!r}: cannot record number {seqs.max()}")
            if self._fit(status, int(seqs[0])):
                continue
            part = self._part_of(seqs.size, status)
            if part:
                yield from self._pieces(seqs[:part])
                seqs = seqs[part:]
            else:
                self._advance(int(seqs[0]))

    def _part_of(self, size: int, status: int) -> int:
        """How many of a batch that does not fit to commit here; 0 if it shall go on elsewhere."""
        cursor = self._cursor
        if status == commit.RANGE:
            return size // 2 if cursor[commit.EVENTS] == 0 else 0
        words = self._head()[0]
        left = cursor[commit.CAPACITY] - words
        with self._ledger._lock:
            left += self._part.free_pages * layout.PAGE_WORDS
        needed = status - words
        if needed <= self._part.segment.words.size or left < 2:
            return 0  # the next segment holds all of it
        return max(1, size * (int(left) - 1) // needed)

    def _fit(self, status: int, first: int) -> bool:
        """Make room in this segment for a batch that wants ``status`` words."""
        cursor = self._cursor
        if status == commit.RANGE:
            if cursor[commit.BASE] < 0:
                self._set_base(first)
                return True
            return False
        pages = -(-(status - int(cursor[commit.CAPACITY])) // layout.PAGE_WORDS)
        with self._ledger._lock:
            if pages > self._part.free_pages:
                return False
            for _ in range(pages):
                self._part.give_page(self._index, cursor)
        return True

    def _make_room(self, status: int, seq: int) -> None:
        if status == commit.RANGE and self._cursor[commit.EVENTS] == 0:
            self._set_base(seq)
        elif status == commit.RANGE:
            self._advance(seq)
        with self._ledger._lock:
            fits = self._cursor[commit.CAPACITY] > self._head()[0]
            if not fits and self._part.free_pages:
                self._part.give_page(self._index, self._cursor)
                fits = True
        if not fits:
            self._advance(seq)
            self._make_room(commit.FULL, seq)

    def _set_base(self, seq: int) -> None:
        """Numbers from ``seq - 2**31`` on can be told apart; readers see it with the first word."""
        base = max(0, seq - layout.SEQ_SPAN // 2)
        at = self._cursor[commit.HEAD] - layout.HEAD_AT + layout.BASE_AT
        atomics.store(self._whole, at, layout.guard(base))
        step("base.stored")
        self._cursor[commit.BASE] = base

    def _advance(self, seq: int) -> None:
        """Go on in a later segment; claims one if there is none."""
        with self._ledger._lock:
            part = self._ledger._part_after(self._part.number)
        events = self.events
        self._enter(part)
        self._earlier = events
        self._set_base(seq)

    def _enter(self, part: _Part) -> None:
        with self._ledger._lock:
            name = self.name.encode()
            index = part.register(self.kind, name, self.source, self.dest)
            self._part, self._index, self._whole = part, index, part.segment.whole
            self._cursor = commit.new_cursor(part.segment, index)
            self._ledger._cursors[part.number, index] = self._cursor


class Ledger:
    """Ledger of one rank in one epoch. Use :meth:`open`."""

    def __init__(self, pool: LedgerPool, epoch: int, rank: int, identity: dict):
        self.epoch, self.rank = epoch, rank
        self._pool, self._identity = pool, identity
        self._lock = threading.RLock()
        self._streams: dict[tuple, StreamLog] = {}
        self._cursors: dict[tuple[int, int], np.ndarray] = {}
        self._parts = [self._claim(0)]

    @classmethod
    def open(
        cls, pool: LedgerPool, *, job: str, attempt: int, epoch: int, rank: int, incarnation: int
    ) -> Ledger:
        """Claim the first segment of ``rank`` in ``epoch``.

        Raises
        ------
        LedgerClosed
            The epoch was ended before this rank opened its ledger.
        LedgerError
            Another process acts as this rank already, or the directory is unusable.
        """
        identity = {"job": job, "attempt": attempt, "incarnation": incarnation}
        return cls(pool, epoch, rank, identity)

    @property
    def closed(self) -> bool:
        """True once the epoch was ended, by whomever."""
        first = self._parts[0].segment
        return bool(int(atomics.load(first.whole, first.at_control)) & CLOSED)

    @property
    def files(self) -> list[str]:
        """Names of the segments."""
        return [part.segment.path.name for part in self._parts]

    def stream(self, kind: int, name: str, source: int, dest: int) -> StreamLog:
        """Log of a stream's end, registered at the first call."""
        key = kind, name, source, dest
        if key not in self._streams:
            if kind not in layout.KINDS or not 0 < len(name.encode()) <= 64 or "\0" in name:
                raise UsageError(f"stream name {name!r}: must have 1 to 64 bytes")
            with self._lock:
                if self._parts[-1].streams == layout.STREAMS:
                    self._part_after(self._parts[-1].number)
                self._streams[key] = StreamLog(self, *key)
        return self._streams[key]

    def published(self, ref) -> bool:
        """Whether the event of a reference from :meth:`StreamLog.next_ref` is committed."""
        epoch, stream, segment, event = ref
        cursor = self._cursors.get((segment, stream))
        return epoch == self.epoch and cursor is not None and cursor[commit.EVENTS] >= event

    @property
    def first_segment(self) -> Segment:
        """The segment whose header speaks for the whole ledger."""
        return self._parts[0].segment

    def snapshot(self) -> list[list[int]]:
        """``[segment, stream index, head, last]`` of every stream, all of one instant.

        Heads only grow, so two readings that agree are what there was between them.
        """
        with self._lock:
            seen, again = self._heads(), self._heads()
            while seen != again:
                seen, again = again, self._heads()
        return seen

    def _heads(self) -> list[list[int]]:
        found = []
        for part in self._parts:
            heads = part.segment.streams["head"][: part.streams].tolist()
            lasts = part.segment.streams["last"][: part.streams].tolist()
            for index, (head, last) in enumerate(zip(heads, lasts, strict=True)):
                found.append([part.number, index, head & ~CLOSED, last])
        return found

    def leave(self) -> None:
        """Let go of it, once its epoch has ended: map and descriptor go with the last user.

        Ledger and streams refer to each other, and a collection may come late or never.
        """
        self._streams.clear()

    def close(self) -> None:
        """End the ledger: nothing can be committed any more."""
        from .seal import close_segments

        close_segments([part.segment for part in self._parts])

    def _claim(self, number: int) -> _Part:
        try:
            path = self._pool.claim(self.epoch, self.rank, number, **self._identity)
        except FileExistsError as error:
            present = Segment(error.args[0])
            if int(present.header["control"]) & CLOSED:
                raise LedgerClosed(f"{present.path}: its epoch has ended") from None
            if int(present.header["incarnation"]) != 0:
                raise LedgerError(f"{present.path}: another process writes it already") from None
            claimed = present
        else:
            claimed = Segment(path)
        step("segment.claimed")
        return _Part(_own(claimed), number)

    def _part_after(self, number: int) -> _Part:
        """First part behind ``number`` that has a free page and table entry."""
        for part in self._parts[number + 1 :]:
            if part.free_pages and part.streams < layout.STREAMS:
                return part
        count, first = len(self._parts), self._parts[0].segment
        part = self._claim(count)
        # Closing and adding contend for one word, so a closer knows every segment there is.
        if int(atomics.swap_if(first.whole, first.at_control, count, count + 1)) != count:
            part.segment.path.unlink(missing_ok=True)
            step("segment.late")
            raise LedgerClosed(f"{first.path}: its epoch has ended")
        step("segment.counted")
        self._parts.append(part)
        return part


def _own(segment: Segment) -> Segment:
    """Become the one writer of a segment, which may have been claimed for us (incarnation 0)."""
    if int(atomics.swap_if(segment.whole, segment.owned_index, 0, 1)) != 0:
        raise LedgerError(f"{segment.path}: another process writes it already")
    return segment
