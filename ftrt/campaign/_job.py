"""The ranks of a batch: rank 0 sends, rank 1 consumes, spares replace whom a trial kills."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ftrt
from ftrt.campaign import completion
from ftrt.campaign.cells import BURST, GRAPHS, STALL_S, WINDOW
from ftrt.campaign.observed import (
    ObservedReceiver,
    ObservedSender,
    observe,
    sends_in_flight,
)
from ftrt.campaign.page import At, Page
from ftrt.campaign.plan import Batch
from ftrt.campaign.trace import Trace

STREAM = "campaign"
_STRIDE = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
#: A trial without a fault takes a tenth of a second, one with a fault about one.
_LIMIT_S = 60.0
_READY_S = 10.0


def payload(seq: int, words: np.ndarray) -> np.ndarray:
    """Message ``seq``: every word is a function of the number and of its place.

    ``words`` is 0, 1, ...; the result is a new array.
    """
    return words + np.uint64(seq * _STRIDE & _MASK)


class Notes:
    """Lines of JSON of one process, appended whole."""

    def __init__(self, directory: Path, name: str) -> None:
        path = directory / f"{name}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **fields: Any) -> None:
        """Append one."""
        os.write(self._file, (json.dumps(fields) + "\n").encode())


class Rank:
    """What both sides have."""

    def __init__(self, rt: Any, batch: Batch, directory: Path) -> None:
        self.rt, self.batch, self.page = rt, batch, Page(directory / "page")
        self.directory = directory
        self._wire_at = At.WIRE_BYTES + rt.rank
        self.words = np.arange(batch.cell.size // 8, dtype=np.uint64)
        observe(rt.job.plane, self._on_wire)
        if batch.cell.plane == "nccl":
            rt.job.plane.packs = False  # each message has a slot, and a send, of its own
        self.page.put(At.PIDS + rt.rank, os.getpid())

    def _on_wire(self, nbytes: int) -> None:
        self.page.words[self._wire_at] += np.uint64(nbytes)

    def say(self, text: str) -> None:
        """Tell a person, in a replay."""
        if self.batch.log:
            now = (time.monotonic_ns() - self.page.get(At.START_NS)) / 1e6
            print(f"{now:9.3f} ms  rank {self.rt.rank}: {text}", flush=True)


class SendingSide(Rank):
    """Runs the trials: sends, aborts, and gives up a channel that gets nowhere."""

    def __init__(self, rt: Any, batch: Batch, directory: Path) -> None:
        super().__init__(rt, batch, directory)
        self._notes = Notes(directory, "sender")
        cell = batch.cell
        self._grain = completion.completion_of(cell)
        self._at_once = self._grain > 1 and cell.plane == "nccl"
        self._trips: list[dict[str, Any]] = []
        self._sampled: Any = None
        self._abort_at = 0
        self._out = self._open()
        self._moved_ns, self._seen = time.monotonic_ns(), (0, 0, 0)
        self._sent = 0

    def _open(self) -> Any:
        rt, cell = self.rt, self.batch.cell
        kind = ObservedSender
        if cell.rule == "completion":
            kind = completion.CompletionSender
        made = kind(
            rt,
            STREAM,
            [1],
            replay=lambda seq: rt.to_plane(payload(seq, self.words)),
            spool=False,
            volatile=False,
            slot_bytes=max(64, cell.size),
            window=WINDOW,
            retention_bytes=None,
        )
        if isinstance(made, completion.CompletionSender):
            made.grain = self._grain
        made.on_leaving = self._on_leaving
        rt._senders.append(made)
        rt._bind(made)
        made.resend_missing()
        return made

    def run(self) -> None:
        """All trials of the batch, from the one that a dead sender was in."""
        first = (self._out.next_seq - 1) // self.batch.messages + 1
        with self._out:
            for position in range(first, len(self.batch.trials) + 1):
                if not self._trial(position):
                    return

    def _trial(self, position: int) -> bool:
        """One trial; False if it shall not take place."""
        page, rt = self.page, self.rt
        rt.wait(lambda: page.get(At.GO) >= position, "the next trial", _LIMIT_S)
        if page.get(At.STOP):
            return False
        self._get_ready()
        wire = self._wire_bytes()
        self._trips = []
        self._begin(position)
        _, last = self.batch.numbers(position)
        self._send_until(last)
        self._until(lambda: self._is_over(last), "the end of a trial")
        end = time.monotonic_ns()
        self._notes.write(
            position=position,
            start_ns=page.get(At.START_NS),
            end_ns=end,
            trips=self._trips,
            wire_bytes=self._wire_bytes() - wire,
        )
        page.put(At.END_NS, end)
        return True

    def _get_ready(self) -> None:
        """Between GPUs: until the communicators are there that the last trial used up."""
        if self.batch.cell.plane == "nccl":
            end = time.monotonic() + _READY_S
            ready = self.rt.job.plane.ready
            self.rt.wait(lambda: ready() or time.monotonic() > end, "standby", _LIMIT_S)

    def _begin(self, position: int) -> None:
        now = time.monotonic_ns()
        first, _ = self.batch.numbers(position)
        abort_at = self.page.get(At.ABORT_AT)
        self._abort_at = first - 1 + abort_at if abort_at else 0
        self._moved_ns, self._sent = now, 0
        self.page.begin(position, now)
        self.say(f"trial {position} begins")

    def _wire_bytes(self) -> int:
        return sum(self.page.get(At.WIRE_BYTES + rank) for rank in range(self.rt.size))

    # -- sending ------------------------------------------------------------------------------

    def _send_until(self, last: int) -> None:
        out, interval_s = self._out, self.batch.interval_us * 1e-6
        due = time.monotonic()
        while out.next_seq <= last:
            seq = out.next_seq
            if self._grain > 1 and seq % self._grain == 1:
                before = seq - 1 - (GRAPHS - 1) * self._grain
                self._until(partial(self._complete, before), "the end of a graph")
            self._until(self._has_credit, "credit")
            self._send(seq)
            self._count(seq)
            if self._grain > 1 or seq % BURST == 0:
                step = out.next_seq - seq if self._grain > 1 else BURST
                due = self._pace(due + step * interval_s)

    def _send(self, seq: int) -> None:
        """Send a message, or between GPUs a whole graph."""
        if not self._at_once:
            self._out.send(self.rt.to_plane(payload(seq, self.words)))
            return
        rows = [payload(number, self.words) for number in range(seq, seq + self._grain)]
        self._out.send_batch(self.rt.to_plane(np.stack(rows)))

    def _count(self, seq: int) -> None:
        """Say how far the stream has come, and abort where the trial says so."""
        sent = (self._out.next_seq - 2) % self.batch.messages + 1
        if sent - self._sent >= BURST or sent == self.batch.messages:
            self._sent = sent
            self.page.put(At.SENT, sent)
        if seq <= self._abort_at < self._out.next_seq:
            self._abort_at = 0
            self.page.put(At.STRUCK_NS, time.monotonic_ns())
            self._trip("abort")

    def _pace(self, due: float) -> float:
        """Until the next message; one that is late does not make those behind it early."""
        while True:
            self._look()
            now_ns = time.monotonic_ns()
            left_s = due - now_ns * 1e-9
            if left_s <= 0:
                return due if left_s > -1e-3 else now_ns * 1e-9
            time.sleep(left_s)

    def _has_credit(self) -> bool:
        lane = self._out.lane
        return not lane.backlog and lane.ring.free_slots >= (self._grain if self._at_once else 1)

    def _complete(self, upto: int) -> bool:
        """Whether all sends up to a number have completed, as far as the sender can see."""
        lane = self._out.lane
        if lane.backlog:
            return False
        return all(done for first, _, done in sends_in_flight(lane.ring) if first <= upto)

    def _is_over(self, last: int) -> bool:
        """Whether all that is under way was given back: it was consumed, or lost for good."""
        lane = self._out.lane
        if lane.backlog or lane.ring.frames_released < lane.ring.frames_sent:
            return False
        consumption = self.batch.cell.rule == "consumption"
        return not consumption or lane.free_upto() >= last

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        if ready():
            return

        def look() -> bool:
            self._look()
            return ready()

        self.rt.wait(look, what, _LIMIT_S)

    # -- what goes wrong ------------------------------------------------------------------------

    def _look(self) -> None:
        """Give up a channel that gets nowhere."""
        now = time.monotonic_ns()
        ring = self._out.lane.ring
        seen = (id(ring), ring.frames_sent, ring.frames_released)
        if seen != self._seen or seen[1] == seen[2]:
            self._seen, self._moved_ns = seen, now
        elif now - self._moved_ns > STALL_S * 1e9:
            self._moved_ns = now
            self._trip("stall")

    def _trip(self, cause: str) -> None:
        """Recover: give the channel up and go on in a new one, on the path of the cell."""
        self.say(f"{cause}: the channel is given up")
        self._sample(cause)
        begin = time.monotonic_ns()
        phases = self._trips[-1]["phases_ms"]
        if self.batch.cell.path == "revoke" and self.batch.cell.plane == "host":
            self.rt.revoke(cause)
            revoked = time.monotonic_ns()
            phases["revoke"] = (revoked - begin) / 1e6
            begin = revoked
        self._out.abort()
        end = time.monotonic_ns()
        phases["rebuild"] = (end - begin) / 1e6
        self._trips[-1]["end_ns"] = end

    def _on_leaving(self, lane: Any) -> None:
        """The channel is about to be replaced; if we did not ask for that, somebody died."""
        if self._sampled is not lane.ring:
            self._sample("death")
            self._trips[-1]["end_ns"] = time.monotonic_ns()

    def _sample(self, cause: str) -> None:
        """Note what the sender has seen complete now, at the fault."""
        lane = self._out.lane
        self._sampled = lane.ring
        open_ = completion.not_complete(lane, self._grain)
        now = time.monotonic_ns()
        self._trips.append(
            {"t_ns": now, "cause": cause, "open": open_, "upto": lane.sent_upto, "phases_ms": {}}
        )
        self.say(f"{cause}: sent up to {lane.sent_upto}, not seen complete: {open_}")


class ReceivingSide(Rank):
    """Consumes what comes, and writes each effect into the trace too."""

    def __init__(self, rt: Any, batch: Batch, directory: Path) -> None:
        super().__init__(rt, batch, directory)
        self._notes = Notes(directory, "receiver")
        self._trace = Trace(directory / "trace", rt.rank)
        kind = ObservedReceiver
        if batch.cell.rule == "completion":
            kind = completion.CompletionReceiver
        self._receiver = kind(rt, STREAM, 0)
        self._receiver.on_left = self._on_left
        rt._receivers.append(self._receiver)
        rt._bind(self._receiver)

    def run(self) -> None:
        """Consume until the stream is closed."""
        keeps_state = self.batch.cell.rule == "consumption"
        state = self.rt.restore() or {} if keeps_state else {}
        done = np.array(state.get("done", [0, 0]), np.uint64)
        for message in self._receiver:
            seq = message.seq
            self._check(seq, self.rt.to_host(message.array))
            self._trace.begun(seq)
            with message.consume() as effect:
                if keeps_state:
                    done = done + np.array([1, seq], np.uint64)
                    effect["done"] = done
            self._trace.committed(seq)
        self._notes.write(done=done.tolist())

    def _check(self, seq: int, array: np.ndarray) -> None:
        if not np.array_equal(array, payload(seq, self.words)):
            self._notes.write(wrong=seq)
            self.say(f"message {seq} is not what was sent")

    def _on_left(self, counts: dict[str, int]) -> None:
        trial = self.page.get(At.TRIAL)
        self._notes.write(position=trial, left=counts)
        self.say(f"a channel was left; in its slots: {counts}")


def main(directory: Path) -> None:
    """Run one rank of a batch."""
    batch = Batch.read(directory / "batch.json")
    with ftrt.init() as rt:
        side = SendingSide if rt.rank == 0 else ReceivingSide
        side(rt, batch, directory).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
