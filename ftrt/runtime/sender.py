"""The sending end of a stream, as an application sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from ftrt.agree.marks import Marks
from ftrt.errors import FtrtError, UsageError
from ftrt.ledger.log import SENT, LedgerClosed
from ftrt.ledger.spool import Spool
from ftrt.runtime.hot import Bell, Recorder
from ftrt.transport import meta
from ftrt.transport.factory import give_up, is_stale, make_send

SLOTS = 64
SLOT_BYTES = 64 * 1024
_GENERATIONS_PER_EPOCH = 1000
_RECORDED_AT_ONCE = 1 << 23


class _Lane:
    """One destination of a stream: its channel, its record of what left, what it already has.

    ``backlog`` holds the numbers that must be sent again before anything new, ``sent_upto`` is the
    last number that any channel took, and ``closing`` says that the end is still to be told.
    """

    def __init__(self, dest: int, ring, recorder: Recorder, have: Marks, bell: Bell):
        self.dest = dest
        self.ring = ring
        self.recorder = recorder
        self.bell = bell
        self.have = have
        self.copies: deque = deque()
        self.backlog: deque[tuple[int, int]] = deque()
        self.again: tuple[int, np.ndarray] | None = None
        self.sent_upto = 0
        self.closing = False

    def set_backlog(self) -> None:
        """Everything that a channel took and that the destination lacks goes out again."""
        self.backlog, self.again = deque(self.have.missing(self.sent_upto)), None


class Sender:
    """Sends numbered messages; made by :meth:`ftrt.Runtime.sender`.

    Attributes
    ----------
    next_seq : int
        Number of the next message: one past everything that the spool or any receiver has. After
        its own death a sender goes on from here.
    """

    def __init__(
        self,
        runtime,
        stream: str,
        to: int | Sequence[int],
        *,
        replay: Callable[[int], np.ndarray] | None,
        spool: bool,
        volatile: bool,
        slot_bytes: int,
        window: int,
    ):
        if sum((replay is not None, spool, volatile)) != 1:
            raise UsageError(
                f"sender {stream!r}: say how a message can be had again: exactly one of "
                "replay=function, spool=True, or volatile=True (lost when this rank dies)"
            )
        self._runtime = runtime
        self.stream = stream
        self._replay = replay
        self._volatile = volatile
        self._slot_bytes, self._window = slot_bytes, window
        self._job = runtime.job
        self._checked_dtype: np.dtype | None = None
        self._checked_bytes = 0
        self.last_seq: int | None = None
        self._generation = 0
        self._spooled_free = 0
        dests = [to] if isinstance(to, int) else list(to)
        self._check_dests(dests)
        self._spool = self._open_spool() if spool else None
        states = {d: runtime.stream_state(stream, runtime.rank, d) for d in dests}
        in_spool = self._spool.last_seq if self._spool else 0
        self.next_seq = max([in_spool + 1, *(s.next_seq for s in states.values())])
        self._lanes: list[_Lane] = []
        for dest in dests:
            self._lanes.append(self._lane(dest, states[dest]))

    def _check_dests(self, dests: list[int]) -> None:
        rt = self._runtime
        for dest in dests:
            if not 0 <= dest < rt.size or dest == rt.rank:
                raise UsageError(
                    f"sender {self.stream!r}: destination {dest} is not another rank of "
                    f"0..{rt.size - 1} (this is rank {rt.rank})"
                )

    def _open_spool(self) -> Spool:
        rt = self._runtime
        spool = Spool(rt.config.ledger, self.stream, rt.rank, rt.since_epoch)
        rt.keep_durable(spool)
        return spool

    def _lane(self, dest: int, state) -> _Lane:
        rt = self._runtime
        have = _up_to(state.marks.copy(), state.delivered)
        ring = self._new_ring(dest)
        log = rt.stream_log(SENT, self.stream, rt.rank, dest)
        recorder = Recorder(rt, log, counts=False)  # what is sent again does not count
        return _Lane(dest, ring, recorder, have, Bell(rt.job, dest))

    def _new_ring(self, dest: int):
        rt = self._runtime
        generation = rt.since_epoch * _GENERATIONS_PER_EPOCH + self._generation
        link = rt.link(self.stream, rt.rank, dest)
        return make_send(link, generation, slots=self._window, slot_bytes=self._slot_bytes)

    def resend_missing(self) -> None:
        """Begin to bring every receiver up to :attr:`next_seq` - 1 with what it alone lacks."""
        if self._runtime.config.stable == "power" and self._runtime.since_epoch > 1:
            self._record_again()
        for lane in self._lanes:
            lane.sent_upto = self.next_seq - 1
            for first, last in [] if self._volatile else lane.have.missing(lane.sent_upto):
                self._record(lane, first, last - first + 1)
            lane.recorder.counts = lane is self._lanes[0]  # a message counts once
            lane.set_backlog()
            self._pump(lane)

    def pump(self) -> None:
        """Send of the backlogs what there is credit for."""
        for lane in self._lanes:
            if lane.backlog or lane.closing:
                self._pump(lane)

    def _pump(self, lane: _Lane) -> bool:
        """Send a lane's backlog, then its end; True once nothing is left of it."""
        while lane.backlog:
            first, last = lane.backlog[0]
            if lane.again is None or lane.again[0] != first:
                if lane.ring.free_slots < 1:
                    return False
                found = self._pristine(lane, first)
                lane.again = None if found is None else (first, found)
            if lane.again is not None:
                if not lane.ring.try_send(first, lane.again[1], self._runtime.epoch):
                    return False
                lane.bell.ring()
            lane.backlog.popleft()
            if first < last:
                lane.backlog.appendleft((first + 1, last))
        if lane.closing and self.last_seq is not None:
            lane.closing = False
            lane.ring.close(self.last_seq)
            lane.bell.ring()
        return True

    def _record_again(self) -> None:
        """A power cut may have taken our record of numbers that a receiver durably has."""
        for lane in self._lanes:
            for first in range(1, self.next_seq, _RECORDED_AT_ONCE):
                self._record(lane, first, min(_RECORDED_AT_ONCE, self.next_seq - first))

    # -- sending -----------------------------------------------------------------------------

    def send(self, array) -> int:
        """Send one array (dtype and shape are kept); returns its number.

        Blocks while the receiver's window is full. The number is recorded in the ledger before
        the message leaves.
        """
        payload = array if type(array) is np.ndarray else np.asarray(array)
        if payload.dtype is not self._checked_dtype or payload.nbytes > self._checked_bytes:
            self._check(payload)
        seq = self.next_seq
        if self._spool:
            self._spool.append(seq, payload)
        for lane in self._lanes:
            if seq <= lane.have.highest and lane.have.contains(seq):
                continue
            try:
                lane.recorder.record(seq, 1)
            except LedgerClosed:
                self._record_later(lane, seq, 1)
            self._publish(lane, seq, payload)
        self.next_seq = seq + 1
        return seq

    def send_batch(self, records) -> int:
        """Send the rows of an array of two or more dimensions as so many messages.

        Rows share slots, as many as fit, each slot under one checksum. Returns the first number.
        """
        rows = records if type(records) is np.ndarray else np.asarray(records)
        if rows.ndim < 1 or (rows.ndim == 1 and rows.dtype.names is None):
            raise UsageError(
                f"send_batch takes a 2-D or structured array, one message a row, not {rows.shape}"
            )
        first, count = self.next_seq, len(rows)
        if not count:
            return first
        row_bytes = rows.nbytes // count
        if rows.dtype is not self._checked_dtype or row_bytes > self._checked_bytes:
            self._check(rows[0])
        if not rows.flags.c_contiguous:
            rows = np.ascontiguousarray(rows)
        if self._spool or row_bytes > self._slot_bytes or self._some_have(first):
            for row in rows:
                self.send(row)
            return first
        step = max(1, self._slot_bytes // row_bytes * self._window) if row_bytes else count
        for start in range(0, count, step):
            part = rows[start : start + step]
            for lane in self._lanes:
                self._record(lane, self.next_seq, len(part))
                self._publish_rows(lane, self.next_seq, part)
            self.next_seq += len(part)
        return first

    def _some_have(self, first: int) -> bool:
        return any(lane.have.highest >= first for lane in self._lanes)

    def _check(self, payload: np.ndarray) -> None:
        """Refuse, before anything is recorded, what could not be sent."""
        meta.check(payload.dtype, payload.shape)
        limit = self._slot_bytes * self._window
        if payload.nbytes > limit:
            least = -(-payload.nbytes // self._window)
            raise UsageError(
                f"sender {self.stream!r}: a message of {payload.nbytes} bytes does not fit into "
                f"window={self._window} slots of slot_bytes={self._slot_bytes}; the smallest that "
                f"works is slot_bytes={least}, or window={-(-payload.nbytes // self._slot_bytes)}"
            )
        self._checked_dtype, self._checked_bytes = payload.dtype, limit

    def _record(self, lane: _Lane, seq: int, count: int) -> None:
        try:
            lane.recorder.record(seq, count)
        except LedgerClosed:
            self._record_later(lane, seq, count)

    def _record_later(self, lane: _Lane, seq: int, count: int) -> None:
        """Record in the ledger of the epoch that comes next."""
        while True:
            self._runtime.advance()
            try:
                lane.recorder.record(seq, count)
                return
            except LedgerClosed:
                continue

    def _publish(self, lane: _Lane, seq: int, payload: np.ndarray) -> None:
        if self._volatile:
            self._keep_copy(lane, seq, payload, False)
        if lane.backlog or not lane.ring.try_send(seq, payload, self._job.epoch):
            self._publish_later(lane, seq, payload)
        lane.sent_upto = seq
        lane.bell.ring()

    def _publish_later(self, lane: _Lane, seq: int, payload: np.ndarray) -> None:
        def attempt():  # the lane may have another channel after each attempt
            return self._pump(lane) and lane.ring.try_send(seq, payload, self._job.epoch)

        self._wait_credit(lane, attempt)

    def _publish_rows(self, lane: _Lane, first: int, rows: np.ndarray) -> None:
        if self._volatile:
            self._keep_copy(lane, first, rows, True)
        rt, done = self._runtime, 0

        def attempt():
            if lane.backlog and not self._pump(lane):
                return 0
            return lane.ring.try_send_batch(first + done, rows[done:], rt.epoch)

        while done < len(rows):
            done += attempt() or self._wait_credit(lane, attempt)
            lane.sent_upto = first + done - 1
            lane.bell.ring()

    def _wait_credit(self, lane: _Lane, attempt: Callable[[], int]) -> int:
        what = f"credit of stream {self.stream!r} from rank {lane.dest}"
        return self._runtime.wait(attempt, what)

    @staticmethod
    def _keep_copy(lane: _Lane, seq: int, payload: np.ndarray, batch: bool) -> None:
        """Without replay or spool a second copy heals a damaged slot: the slot is not one."""
        lane.copies.append((seq, payload.copy(), batch))
        floor = lane.ring.oldest_seq_held
        while lane.copies and lane.copies[0][0] + _span(lane.copies[0]) <= floor:
            lane.copies.popleft()

    # -- healing -----------------------------------------------------------------------------

    def nacked(self) -> bool:
        """True if a receiver found a slot damaged and waits for it to be written again."""
        return any(lane.ring.nacked() is not None for lane in self._lanes)

    def heal(self) -> None:
        """Write damaged slots again from a pristine copy."""
        for lane in self._lanes:
            frame = lane.ring.nacked()
            if frame is None:
                continue
            seq, count = lane.ring.first_seq_of(frame), lane.ring.count_of(frame)
            again = self._again(lane, seq, count, lane.ring.is_batch(frame))
            lane.ring.rewrite(frame, again, self._runtime.epoch)
            self._runtime.note("healed", stream=self.stream, dest=lane.dest, seq=seq, count=count)
            lane.bell.ring()

    def _again(self, lane: _Lane, seq: int, count: int, batch: bool) -> np.ndarray:
        if not batch:
            return self._must(lane, seq)
        return np.stack([self._must(lane, number) for number in range(seq, seq + count)])

    def _must(self, lane: _Lane, seq: int) -> np.ndarray:
        again = self._pristine(lane, seq)
        if again is None:
            raise FtrtError(
                f"rank {self._runtime.rank}: message {seq} of stream {self.stream!r} is damaged at "
                f"rank {lane.dest} and no copy of it is left"
            )
        return again

    def _pristine(self, lane: _Lane, seq: int) -> np.ndarray | None:
        if self._replay is not None:
            return np.asarray(self._replay(seq))
        if self._spool is not None:
            return self._spool.read(seq)
        for first, payload, batch in lane.copies:
            if batch and first <= seq < first + len(payload):
                return payload[seq - first]
            if not batch and seq == first:
                return payload
        return None

    def free_spool(self) -> None:
        """Give back the storage of what every receiver has consumed."""
        if self._spool is None:
            return
        consumed = min(lane.ring.oldest_seq_held for lane in self._lanes) - 1
        if consumed > self._spooled_free:
            consumed = min(
                self._runtime.stable_upto(self.stream, lane.dest, consumed) for lane in self._lanes
            )
        if consumed > self._spooled_free:
            self._spooled_free = consumed
            self._spool.free(consumed)

    def abort(self) -> None:
        """Fault injection: give up the rings and go on in new ones from what counts."""
        rt = self._runtime
        for lane in self._lanes:
            upto = give_up(lane.ring) - 1
            lane.have.add(1, max(0, upto))
            self._renew(lane)
            rt.note("aborted", stream=self.stream, dest=lane.dest, upto=upto)
            self._pump(lane)
            lane.bell.ring()

    def _renew(self, lane: _Lane) -> None:
        """Go on in a new channel, with all that the destination lacks."""
        self._generation += 1
        lane.ring = self._new_ring(lane.dest)
        lane.set_backlog()
        lane.closing = self.last_seq is not None

    # -- epochs and the end ------------------------------------------------------------------

    def rebind(self, ledger) -> None:
        """Go on in the ledger of a new epoch."""
        rt = self._runtime
        for lane in self._lanes:
            if is_stale(rt.link(self.stream, rt.rank, lane.dest), lane.ring):
                state = rt.stream_state(self.stream, rt.rank, lane.dest)
                lane.have = _up_to(state.marks.copy(), state.delivered)
                self._renew(lane)
            lane.recorder.log = ledger.stream(SENT, self.stream, rt.rank, lane.dest)
            if self.last_seq is not None:
                lane.recorder.log.finish(self.last_seq)

    def close(self) -> None:
        """Record the last number; receivers end after it. Does not wait for them."""
        if self.last_seq is not None:
            return
        self.last_seq = self.next_seq - 1
        for lane in self._lanes:
            while True:
                try:
                    lane.recorder.log.finish(self.last_seq)
                    break
                except LedgerClosed:
                    self._runtime.advance()
            lane.closing = True
            self._pump(lane)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()


def _up_to(marks: Marks, delivered: int) -> Marks:
    if delivered >= 1:
        marks.add(1, delivered)
    return marks


def _span(copy: tuple) -> int:
    _, payload, batch = copy
    return len(payload) if batch else 1
