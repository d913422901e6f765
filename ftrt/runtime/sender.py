"""The sending end of a stream, as an application sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ftrt.errors import FtrtError, UsageError
from ftrt.ledger.log import SENT, LedgerClosed
from ftrt.runtime import forked
from ftrt.runtime.kept import Replayed, Spooled, make_kept, retention_of
from ftrt.runtime.lane import Lane, have_of
from ftrt.transport import meta
from ftrt.transport.entries import E_SLEEPING
from ftrt.transport.factory import give_up, is_stale
from ftrt.transport.layout import check_sizes
from ftrt.transport.ring import SendRing
from ftrt.transport.ring_kernels import send_recorded

SLOTS = 64
SLOT_BYTES = 64 * 1024
_RECORDED_AT_ONCE = 1 << 23
_REFUSED = 2


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
        to: Sequence[int],
        *,
        replay: Callable[[int], np.ndarray] | None,
        spool: bool,
        volatile: bool,
        slot_bytes: int,
        window: int,
        retention_bytes: int | None,
    ):
        self._runtime = runtime
        self.stream = stream
        self._volatile = volatile
        self._slot_bytes, self._window = slot_bytes, window
        self._job = runtime.job
        self._arrays, self._kind = runtime.job.arrays, runtime.job.arrays.kind
        self._checked_dtype: np.dtype | None = None
        self._checked_bytes = 0
        self.last_seq: int | None = None
        self._usual: tuple | None = None
        self._sending = False
        self._owned = True
        dests = self._dests = list(to)
        window_bytes = window * check_sizes(window, slot_bytes)
        self._retention_bytes = retention_of(
            f"sender {stream!r}", retention_bytes, window_bytes, window if spool else 0, replay
        )
        self._kept = make_kept(runtime, stream, replay, spool, len(dests))
        self._keeps = self._kept.keeps
        self._freed = 0
        # Space is given back a quarter of a window at a time, not with each message.
        self._free_step = max(1, slot_bytes * window // 4)
        self._free_at = self._free_step
        states = {d: runtime.stream_state(stream, runtime.rank, d) for d in dests}
        self.next_seq = self._kept.resume(max(s.next_seq for s in states.values()))
        sizes = {"slots": window, "slot_bytes": slot_bytes}
        self._lanes = [Lane(runtime, stream, dest, states[dest], **sizes) for dest in dests]

    def resend_missing(self) -> None:
        """Begin to bring every receiver up to :attr:`next_seq` - 1 with what it alone lacks."""
        if self._runtime.config.durable and self._runtime.since_epoch > 1:
            self._record_again()
        for lane in self._lanes:
            lane.begin(self.next_seq - 1)
            for first, last in [] if self._volatile else lane.have.missing(lane.sent_upto):
                self._record(lane, first, last - first + 1)
            lane.recorder.counts = lane is self._lanes[0]  # a message counts once
            self._pump(lane)

    def pump(self) -> None:
        """Send of the backlogs what there is credit for."""
        for lane in self._lanes:
            if lane.backlog or lane.closing:
                self._pump(lane)

    def _pump(self, lane: Lane) -> bool:
        """Send a lane's backlog, then its end; True once nothing is left of it."""
        while lane.backlog:
            first, last = lane.backlog[0]
            if lane.again is None or lane.again[0] != first:
                if lane.ring.free_slots < 1:
                    return False
                found = self._kept.again(first)
                lane.again = None if found is None else (first, found)
            if lane.again is not None:
                if not lane.ring.try_send(first, lane.again[1], self._runtime.epoch):
                    return False
                lane.bell.ring()
            else:
                lane.lost.add(first)
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
        usual = self._usual
        if usual is not None and type(array) is np.ndarray:
            seq = self.next_seq
            status = send_recorded(*usual, array, seq)
            if 0 <= status < _REFUSED:
                self.next_seq = seq + 1
                self._lanes[0].sent_upto = seq
                if status:
                    self._lanes[0].bell.ring()
                return seq
        payload = array if type(array) is self._kind else self._arrays.array(array)
        if payload.dtype is not self._checked_dtype or payload.nbytes > self._checked_bytes:
            self._check(payload)
        self._begin()
        seq = self.next_seq
        if self._keeps:
            try:
                self._keep(seq, payload, False)
            except BaseException:
                self._sending = False  # nothing of it was kept, recorded or sent
                raise
        for lane in self._lanes:
            if seq <= lane.have.highest and lane.have.contains(seq):
                continue
            try:
                lane.recorder.record(seq, 1)
            except LedgerClosed:
                self._record_later(lane, seq, 1)
            self._publish(lane, seq, payload)
        self.next_seq = seq + 1
        self._sending = False
        self._usual = self._usual_way()
        return seq

    def _usual_way(self) -> tuple | None:
        """What one kernel needs to record and send the next message, if nothing is in its way."""
        lane, job = self._lanes[0], self._job
        if len(self._lanes) > 1 or self._keeps or lane.backlog:
            return None
        ring, recorder = lane.ring, lane.recorder
        if type(ring) is not SendRing or lane.have.highest >= self.next_seq:
            return None
        if not recorder.direct:
            return None
        recorder.entry[E_SLEEPING] = lane.bell.address()
        ring.enter(job.epoch)
        return recorder.entry, ring.state, ring.known

    def _begin(self) -> None:
        """A number belongs to one payload: no other send may come before it has left."""
        if not self._owned:
            forked.refuse(f"sender {self.stream!r}")
        if self.last_seq is not None:
            raise UsageError(
                f"rank {self._runtime.rank}: sender {self.stream!r} is closed after message "
                f"{self.last_seq}, where its receivers end: nothing of this call was sent"
            )
        if self._sending:
            raise UsageError(
                f"rank {self._runtime.rank}: sender {self.stream!r}: message {self.next_seq} is "
                "still being sent: do not send from an on_recovery hook on the same sender, nor "
                "again after a send raised; nothing of this call was sent"
            )
        self._sending, self._usual = True, None

    def send_batch(self, records) -> int:
        """Send the rows of an array of two or more dimensions as so many messages.

        Rows share slots, as many as fit, each slot under one checksum. Returns the first number.
        """
        rows = records if type(records) is self._kind else self._arrays.array(records)
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
        if (
            isinstance(self._kept, Spooled)
            or row_bytes > self._slot_bytes
            or self._some_have(first)
        ):
            for row in rows:
                self.send(row)
            return first
        step = max(1, self._slot_bytes // row_bytes * self._window) if row_bytes else count
        self._begin()
        for start in range(0, count, step):
            part = rows[start : start + step]
            if self._keeps:
                self._keep(self.next_seq, part, True)
            for lane in self._lanes:
                self._record(lane, self.next_seq, len(part))
                self._publish_rows(lane, self.next_seq, part)
            self.next_seq += len(part)
        self._sending = False
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

    def _record(self, lane: Lane, seq: int, count: int) -> None:
        self._usual = None  # it may be another segment from now on
        try:
            lane.recorder.record(seq, count)
        except LedgerClosed:
            self._record_later(lane, seq, count)

    def _record_later(self, lane: Lane, seq: int, count: int) -> None:
        """Record in the ledger of the epoch that comes next."""
        while True:
            self._runtime.advance()
            try:
                lane.recorder.record(seq, count)
                return
            except LedgerClosed:
                continue

    def _publish(self, lane: Lane, seq: int, payload: np.ndarray) -> None:
        if lane.backlog or not lane.ring.try_send(seq, payload, self._job.epoch):
            self._publish_later(lane, seq, payload)
        lane.sent_upto = seq
        lane.bell.ring()

    def _publish_later(self, lane: Lane, seq: int, payload: np.ndarray) -> None:
        def attempt():  # the lane may have another channel after each attempt
            return self._pump(lane) and lane.ring.try_send(seq, payload, self._job.epoch)

        self._wait_credit(lane, attempt)

    def _publish_rows(self, lane: Lane, first: int, rows: np.ndarray) -> None:
        rt, done = self._runtime, 0

        def attempt():
            if lane.backlog and not self._pump(lane):
                return 0
            return lane.ring.try_send_batch(first + done, rows[done:], rt.epoch)

        while done < len(rows):
            done += attempt() or self._wait_credit(lane, attempt)
            lane.sent_upto = first + done - 1
            lane.bell.ring()

    def _wait_credit(self, lane: Lane, attempt: Callable[[], int]) -> int:
        what = f"credit of stream {self.stream!r} from rank {lane.dest}"
        return self._runtime.wait(attempt, what)

    # -- what is kept for a resend -------------------------------------------------------------

    def _keep(self, first: int, payload: np.ndarray, batch: bool) -> None:
        """Keep what is needed to have messages again, before they leave."""
        kept = self._kept
        if kept.kept_bytes >= self._free_at:
            self.free_kept()
            self._free_at = kept.kept_bytes + self._free_step
        if kept.kept_bytes + payload.nbytes + kept.overhead > self._retention_bytes:
            self._wait_retention(payload.nbytes + kept.overhead)
        (kept.keep_rows if batch else kept.keep)(first, payload)

    def _wait_retention(self, size: int) -> None:
        """Wait until so much more can be kept: what was consumed becomes stable meanwhile."""
        kept, limit = self._kept, self._retention_bytes

        def fits():
            self.free_kept()
            return kept.kept_bytes + size <= limit

        self._runtime.wait(
            fits,
            f"room in the retention of stream {self.stream!r} ({kept.kept_bytes} of "
            f"{limit} bytes wait to be consumed and stable at ranks {self._dests})",
        )

    def free_kept(self) -> None:
        """Give back what is kept of messages that every receiver has at the job's class."""
        if not self._keeps and not any(lane.unsure for lane in self._lanes):
            return
        upto = min(lane.free_upto() for lane in self._lanes)
        if upto > self._freed:
            self._freed = upto
            self._kept.free(upto)

    # -- healing -----------------------------------------------------------------------------

    def nacked(self) -> bool:
        """True if a receiver found a slot damaged and waits for it to be written again."""
        for lane in self._lanes:
            if lane.ring.nacked() is not None:
                return True
            if lane.earlier and any(ring.nacked() is not None for ring in lane.earlier):
                return True
        return False

    def heal(self) -> None:
        """Write damaged slots again from a pristine copy, also those of a sender that is dead."""
        for lane in self._lanes:
            for ring in (lane.ring, *lane.earlier):
                frame = ring.nacked()
                if frame is not None:
                    self._heal(lane, ring, frame)

    def _heal(self, lane: Lane, ring, frame: int) -> None:
        seq, count = ring.first_seq_of(frame), ring.count_of(frame)
        if ring.is_batch(frame):
            again = self._arrays.stack(
                [self._must(lane, number) for number in range(seq, seq + count)]
            )
        else:
            again = self._must(lane, seq)
        if isinstance(self._kept, Replayed) and ring.differs(frame, again):
            self._kept.refuse(seq, f"the one that rank {lane.dest} received damaged")
        ring.rewrite(frame, again, self._runtime.epoch)
        self._runtime.note("healed", stream=self.stream, dest=lane.dest, seq=seq, count=count)
        lane.bell.ring()

    def _must(self, lane: Lane, seq: int) -> np.ndarray:
        again = self._kept.again(seq)
        if again is None:
            raise FtrtError(
                f"rank {self._runtime.rank}: message {seq} of stream {self.stream!r} is damaged at "
                f"rank {lane.dest} and no copy of it is left"
            )
        return again

    def fail_over(self) -> None:
        """Go on in another channel wherever the one in use does not work any more."""
        for lane in self._lanes:
            lane.ring.check()
            if reason := lane.ring.failed:
                self._runtime.note("failed over", stream=self.stream, dest=lane.dest, reason=reason)
                self.abort([lane])

    def abort(self, lanes: list[Lane] | None = None) -> None:
        """Give up the channels (by default all) and go on in new ones from what counts."""
        rt = self._runtime
        for lane in self._lanes if lanes is None else lanes:
            upto = give_up(lane.ring) - 1
            lane.have.add(1, max(0, upto))
            self._renew(lane)
            held = {"held": self._job.plane.held()} if hasattr(self._job.plane, "held") else {}
            rt.note("aborted", stream=self.stream, dest=lane.dest, upto=upto, **held)
            self._pump(lane)
            lane.bell.ring()

    def _renew(self, lane: Lane) -> None:
        self._usual = None
        lane.renew()
        lane.closing = self.last_seq is not None

    # -- epochs and the end ------------------------------------------------------------------

    def rebind(self, ledger) -> None:
        """Go on in the ledger of a new epoch."""
        rt = self._runtime
        self._usual = None
        for lane in self._lanes:
            if is_stale(lane.link, lane.ring):
                state = rt.stream_state(self.stream, rt.rank, lane.dest)
                lane.have = have_of(state)
                self._renew(lane)
            lane.recorder.log = ledger.stream(SENT, self.stream, rt.rank, lane.dest)
            if self.last_seq is not None:
                lane.recorder.log.finish(self.last_seq)

    def close(self) -> None:
        """Record the last number; receivers end after it. Does not wait for them."""
        if self.last_seq is not None or not self._owned:
            return
        self.last_seq = self.next_seq - 1
        self._usual = None
        for lane in self._lanes:
            while True:
                try:
                    lane.recorder.log.finish(self.last_seq)
                    break
                except LedgerClosed:
                    self._runtime.advance()
            lane.closing = True
            self._pump(lane)

    def disown(self) -> None:
        """Refuse to send from now on: this is a forked child."""
        self._owned, self._usual = False, None

    @property
    def seat(self):
        """The rank, as this process acts for it, that sends here."""
        return self._runtime

    @property
    def settled(self) -> bool:
        """Whether no receiver needs anything of this sender any more."""
        return all(lane.settled for lane in self._lanes)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
