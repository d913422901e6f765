"""A channel inside one process: the ring's contract without a file, for tests and simulations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ftrt.errors import UsageError
from ftrt.transport import meta
from ftrt.transport.base import Frame
from ftrt.transport.slots import Verdict


@dataclass
class _State:
    slots: int
    slot_bytes: int
    released: int = 0
    closed: int | None = None
    sealed: int | None = None
    nack: int | None = None
    frames: list[Frame] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)


def pair(slots: int, slot_bytes: int) -> tuple[MemorySender, MemoryReceiver]:
    """Both ends of a new channel."""
    state = _State(slots, slot_bytes)
    return MemorySender(state), MemoryReceiver(state)


def _snapshot(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


class MemorySender:
    """The sender's end."""

    def __init__(self, state: _State) -> None:
        self._state = state

    @property
    def frames_sent(self) -> int:
        """Number of the last frame."""
        return len(self._state.frames)

    @property
    def frames_released(self) -> int:
        """Frames that the receiver has given back."""
        return self._state.released

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""
        return self._state.slots - self.frames_sent + self._state.released

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message; False if there is no credit."""
        array = meta.as_array(array)
        needed = -(-array.nbytes // self._state.slot_bytes)
        if needed > self._state.slots:
            raise UsageError(f"a message of {array.nbytes} bytes cannot pass this channel")
        return self._put(seq, 1, False, array, epoch)

    def try_send_batch(self, first_seq: int, records, epoch: int) -> int:
        """Send the rows of ``records`` as messages; how many were taken."""
        records = meta.as_array(records)
        if records.ndim < 1:
            raise UsageError("a batch needs an array whose first axis counts the records")
        row_bytes = records.nbytes // len(records) if len(records) else 0
        if row_bytes > self._state.slot_bytes:
            raise UsageError(f"records of {row_bytes} bytes do not fit: send them one by one")
        step = self._state.slot_bytes // row_bytes if row_bytes else max(len(records), 1)
        done = 0
        while done < len(records):
            part = records[done : done + step]
            if not self._put(first_seq + done, len(part), True, part, epoch):
                break
            done += len(part)
        return done

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message."""
        self._state.closed = last_seq

    def nacked(self) -> int | None:
        """Number of a frame that the receiver could not read, if any."""
        return self._state.nack

    def first_seq_of(self, frame: int) -> int:
        """First seq in a frame."""
        return self._kept(frame).seq

    def count_of(self, frame: int) -> int:
        """Number of messages in a frame."""
        return self._kept(frame).count

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Heal a frame from a pristine copy."""
        if self.nacked() != frame:
            raise UsageError(f"frame {frame} was not asked for again: its reader may be using it")
        healed = self._kept(frame)._replace(array=_snapshot(meta.as_array(array)), epoch=epoch)
        self._state.frames[frame - 1] = healed
        self._state.damaged.discard(frame)
        self._state.nack = None

    def seal(self) -> None:
        """Fix the last frame that counts, as the agent does for a dead sender."""
        if self._state.sealed is None:
            self._state.sealed = self.frames_sent

    def corrupt(self, frame: int) -> None:
        """Damage a frame."""
        self._state.damaged.add(frame)

    def _kept(self, frame: int) -> Frame:
        if not max(0, self.frames_sent - self._state.slots) < frame <= self.frames_sent:
            raise UsageError(f"frame {frame} is not among the last {self._state.slots} sent")
        return self._state.frames[frame - 1]

    def _put(self, seq: int, count: int, records: bool, array, epoch: int) -> bool:
        if self.free_slots < 1:
            return False
        number = self.frames_sent + 1
        frame = Frame(number, seq, count, records, epoch, _snapshot(array), Verdict.OK)
        self._state.frames.append(frame)
        return True


class MemoryReceiver:
    """The receiver's end."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._next = 1
        self._next_seq = 0
        self.counters = dict.fromkeys(("ok", "empty", "stale", "torn", "duplicate", "nacks"), 0)

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""
        return self._state.closed is not None and self._next > len(self._state.frames)

    @property
    def exhausted(self) -> bool:
        """The sender's end was sealed and all that counts was read."""
        return self._state.sealed is not None and self._next > self._state.sealed

    def poll(self) -> Frame | None:
        """The next frame, or None if none can be read now."""
        if self._next > len(self._state.frames) or self.exhausted:
            self.counters["empty"] += 1
            return None
        if self._next in self._state.damaged:
            if self._state.nack is None:
                self._state.nack = self._next
                self.counters["torn"] += 1
                self.counters["nacks"] += 1
            return None
        frame = self._state.frames[self._next - 1]
        self._next += 1
        seen = frame.seq + frame.count <= self._next_seq
        self._next_seq = max(self._next_seq, frame.seq + frame.count)
        self.counters["duplicate" if seen else "ok"] += 1
        return frame._replace(verdict=Verdict.DUPLICATE if seen else Verdict.OK)

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``."""
        if number >= self._next:
            raise UsageError(f"frame {number} was not read yet")
        self._state.released = max(self._state.released, number)
