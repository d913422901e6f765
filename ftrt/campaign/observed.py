"""The production ends of a stream, watched: which sends were seen complete, what a fault left.

Nothing here changes what they do. The wire is handed to the channels from outside, so one that
remembers how each of its requests ended takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt.runtime.receiver import Receiver
from ftrt.runtime.sender import Sender
from ftrt.transport import layout
from ftrt.transport.mpi_plane import MpiPlane
from ftrt.transport.mpi_recv import RecvMpi
from ftrt.transport.nccl.wire import wire_bytes
from ftrt.transport.slots import (
    HEADER_BYTES,
    PREFIX_BYTES,
    Verdict,
    payload_sum,
    seed_of,
    verify_fields,
)


class Request:
    """A send, with how it ended: MPI tells that once, and to whoever asks first."""

    __slots__ = ("_complete", "_failure", "_inner")

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._complete = False
        self._failure: BaseException | None = None

    def Test(self) -> bool:
        """As of mpi4py's request, any number of times."""
        if self._failure is not None:
            raise self._failure
        if not self._complete:
            try:
                self._complete = bool(self._inner.Test())
            except BaseException as failure:
                self._failure = failure
                raise
        return self._complete

    def Cancel(self) -> None:
        """As of mpi4py's request."""
        self._inner.Cancel()

    def seen_complete(self) -> bool:
        """What a sender that trusts completion would see now."""
        try:
            return self.Test()
        except Exception:  # of whatever class: it has failed
            return False


class ObservedWire:
    """A wire whose sends can be asked for their completion later, and that counts bytes.

    Parameters
    ----------
    inner : ftrt.mpi.Wire
    count : callable
        Gets the bytes of each message that is given to the wire.
    """

    def __init__(self, inner: Any, count: Callable[[int], None]) -> None:
        self._inner, self._count = inner, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, buffer: Any, process: int, tag: int) -> Request:
        """As the inner wire's."""
        made = Request(self._inner.send(buffer, process, tag))
        self._count(memoryview(buffer).nbytes)
        return made


class ObservedGroups:
    """Remembers, for the groups of a channel between GPUs, an event behind the sends of each.

    Parameters
    ----------
    channel : ftrt.transport.nccl.send.SendNccl
    device : ftrt.transport.nccl.device.Device
    count : callable
        Gets the bytes of each group that is given to the wire.
    """

    def __init__(self, channel: Any, device: Any, count: Callable[[int], None]) -> None:
        self._channel, self._device, self._count = channel, device, count
        self._marks: dict[int, Any] = {}
        self._post = channel._post
        channel._post = self.post
        channel.in_flight = self.in_flight

    def post(self, note: Any, slot: int, payload: Any) -> None:
        """As of the channel, and the event that a sender would look at."""
        self._post(note, slot, payload)
        if self._channel.broken is None:
            self._marks[note.group] = self._device.mark(self._channel._sending)
            self._count(note.slots * wire_bytes(note.frame_bytes))
        for group in [g for g in self._marks if g <= self._channel._released]:
            del self._marks[group]

    def in_flight(self) -> list[tuple[int, int, bool]]:
        """As :func:`sends_in_flight`."""
        notes = [group.note for group in self._channel._groups]
        return [(note.seq, note.count, self._is_complete(note.group)) for note in notes]

    def _is_complete(self, group: int) -> bool:
        mark = self._marks.get(group)
        try:
            return mark is not None and bool(mark.done())
        except Exception:  # of whatever class: the device is lost, or the communicator
            return False


def observe(plane: Any, count: Callable[[int], None]) -> None:
    """Have all channels that a plane makes from now on observed."""
    if isinstance(plane, MpiPlane):
        plane._wire = ObservedWire(plane._wire, count)
        return
    make_send = plane.make_send

    def make_observed(*arguments: Any, **sizes: Any) -> Any:
        channel = make_send(*arguments, **sizes)
        ObservedGroups(channel, plane.device, count)
        return channel

    plane.make_send = make_observed


def sends_in_flight(channel: Any) -> list[tuple[int, int, bool]]:
    """First number, messages and completion of each frame that was not given back."""
    if hasattr(channel, "in_flight"):
        return channel.in_flight()
    found, sends = [], list(channel._sends)
    for index in range(channel._dispatched - channel._reaped):
        frame = channel._reaped + 1 + index
        # A frame behind the channel's failure was kept, but never given to the wire.
        complete = index < len(sends) and sends[index].seen_complete()
        found.append((channel.first_seq_of(frame), channel.count_of(frame), complete))
    return found


class ObservedSender(Sender):
    """A sender that tells of each channel that it leaves, while its requests can still be asked.

    Attributes
    ----------
    on_leaving : callable
        Called with the lane before its channel is replaced.
    """

    on_leaving: Callable[[Any], None] = staticmethod(lambda lane: None)

    @property
    def lane(self) -> Any:
        """The one lane of a stream between two ranks."""
        return self._lanes[0]

    def _renew(self, lane: Any) -> None:
        self.on_leaving(lane)
        super()._renew(lane)


class ObservedReceiver(Receiver):
    """A receiver that tells what lay in a channel that it left.

    Attributes
    ----------
    on_left : callable
        Called with counts of the slots in which nothing, half a message or a whole one was found.
    """

    on_left: Callable[[dict[str, int]], None] = staticmethod(lambda counts: None)

    def _next_ring(self) -> bool:
        old = self._ring
        found = super()._next_ring()
        if found and old is not None:
            self.on_left(left_in(old))
        return found


def left_in(channel: Any) -> dict[str, int]:
    """What is in the slots of a channel that its receiver left, and that it has not read.

    They are the receives that were posted for nothing: what a consumer that looked at them without
    a header and a checksum would take for messages.
    """
    counts = {"empty": 0, "torn": 0, "whole": 0}
    if not isinstance(channel, RecvMpi):
        return _left_on_gpu(channel, counts)
    for frame in range(channel.next_frame, channel._released + channel.slots + 1):
        counts[_judge(channel._map, frame)] += 1
    return counts


def _left_on_gpu(channel: Any, counts: dict[str, int]) -> dict[str, int]:
    """By the verdicts of the checks that were queued behind the receives."""
    for posted in channel._posted:
        verdicts = channel._mem.table[posted.slot : posted.slot + posted.note.slots, 0].tolist()
        for index, word in enumerate(verdicts):
            checked = word >> 3 == posted.operation + index
            verdict = Verdict(word & 7) if checked else Verdict.EMPTY
            counts[_FOUND.get(verdict, "empty")] += 1
    return counts


_FOUND = {Verdict.OK: "whole", Verdict.TORN: "torn"}


def _judge(ring: Any, frame: int) -> str:
    at = ring.at(frame)
    stream, capacity = ring[layout.W_STREAM], ring.slot_bytes
    # The publish word does not travel: whether the header of this frame came, its check says.
    if verify_fields(ring.words, at, frame, stream, 0, 0, capacity) != Verdict.OK:
        return "empty"
    return "whole" if _payload_is_whole(ring.words, ring.octets, at) else "torn"


def _payload_is_whole(words: np.ndarray, octets: np.ndarray, at: int) -> bool:
    size, part = int(words[at + 3]), int(words[at + 6])
    meta = np.ascontiguousarray(words[at + HEADER_BYTES // 8 : at + PREFIX_BYTES // 8])
    start = at * 8 + PREFIX_BYTES
    payload = octets[start : start + size].copy()
    payload.flags.writeable = False
    seed = seed_of(words[at + 2], np.uint64(part >> 32 & 0xFFFF))
    return int(payload_sum(meta, part >> 48, payload, seed)) == int(words[at + 4])
