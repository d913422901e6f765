"""The agreement's messages as bytes: names as runs, a record as whom it leaves out.

A head of 24 bytes (kind, sender, attempt, counter of the epoch to be made), then what the kind has,
all little-endian. The job is not in it: a communicator carries one job.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from itertools import chain

from ftrt.agree.agreement import AgreedRecord, Announce, Call, Report
from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Table, Told
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.agree.tree import runs
from ftrt.errors import InvariantBroken

Message = Report | Call | Announce | Told

_HEAD = struct.Struct("<IIQQ")
_KINDS = {Report: 1, Call: 2, Announce: 3, Told: 4}
_LENGTH = struct.Struct("<I")
_STREAM = struct.Struct("<HIIQQQQI")


def encode(message: Message, sender: int, epoch: EpochId, agents: Sequence[int] = ()) -> bytes:
    """Give a message its bytes; `agents` are all of the parent epoch, for a record."""
    head = _HEAD.pack(_KINDS[type(message)], sender, epoch.attempt, epoch.counter)
    if isinstance(message, Report):
        return head + _numbers([end for run in runs(message.have) for end in run])
    if isinstance(message, Announce):
        record = message.record
        missing = sorted(set(agents).difference(record.members))
        return head + _numbers([record.epoch.attempt, record.coordinator, *missing])
    if isinstance(message, Told):
        return head + b"".join(map(_entry, message.marks.values()))
    return head


def _numbers(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _entry(entry: StreamMarks) -> bytes:
    name, marks = entry.stream.encode(), entry.marks
    above = marks.above
    head = (len(name), entry.source, entry.dest, entry.sent, entry.last, entry.next_seq)
    fixed = _STREAM.pack(*head, marks.hwm, len(above)) + name
    if not above:
        return fixed
    return fixed + struct.pack(f"<{2 * len(above)}Q", *chain.from_iterable(above))


def joined(messages: Sequence[bytes]) -> bytes:
    """Put messages to one agent into a packet, each behind its length."""
    return b"".join(_LENGTH.pack(len(message)) + message for message in messages)


def split(packet: bytes) -> Iterator[bytes]:
    """Give the messages of a packet.

    Raises
    ------
    InvariantBroken
        Its lengths do not fit.
    """
    at = 0
    while at < len(packet):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(packet, at)[0] if start <= len(packet) else start
        if at > len(packet):
            raise InvariantBroken(f"a packet of {len(packet)} bytes is damaged")
        yield packet[start:at]


def head_of(data: bytes) -> tuple[int, int, int]:
    """Sender, attempt and counter of a message.

    Raises
    ------
    InvariantBroken
        It is none.
    """
    if len(data) < _HEAD.size:
        raise InvariantBroken(f"{len(data)} bytes are no message of an agreement")
    _, sender, attempt, counter = _HEAD.unpack_from(data)
    return sender, attempt, counter


def told_of(data: bytes, job: str, ranks: Container[int]) -> Told:
    """Read of a Told message the marks of the streams with an end at one of `ranks`.

    Raises
    ------
    InvariantBroken
        It cannot be that.
    """
    sender, attempt, counter = head_of(data)
    if data[0] != _KINDS[Told]:
        raise InvariantBroken(f"a message of {len(data)} bytes has no marks")
    try:
        return Told(sender, EpochId(job, attempt, counter), _table(data, ranks))
    except (struct.error, ValueError) as error:
        raise InvariantBroken(f"a message of {len(data)} bytes is damaged: {error}") from error


def decode(data: bytes, job: str, agents: Sequence[int]) -> Message:
    """Read what `encode` wrote.

    Raises
    ------
    InvariantBroken
        It cannot be that.
    """
    sender, attempt, counter = head_of(data)
    kind = _HEAD.unpack_from(data)[0]
    epoch = EpochId(job, attempt, counter)
    try:
        if kind == 2:
            return Call(sender)
        if kind == 4:
            return Told(sender, epoch, _table(data))
        values = struct.unpack_from(f"<{(len(data) - _HEAD.size) // 4}I", data, _HEAD.size)
        if kind == 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            return Report(sender, frozenset(a for b, e in pairs for a in range(b, e + 1)))
        if kind == 3:
            missing = frozenset(values[2:])
            members = tuple(a for a in agents if a not in missing) if missing else tuple(agents)
            made = EpochId(job, values[0], counter)
            return Announce(sender, AgreedRecord(made, values[1], members))
    except (struct.error, ValueError, IndexError) as error:
        raise InvariantBroken(f"a message of {len(data)} bytes is damaged: {error}") from error
    raise InvariantBroken(f"a message of {len(data)} bytes is of no kind that exists ({kind})")


def _table(data: bytes, ranks: Container[int] | None = None) -> Table:
    at, table = _HEAD.size, {}
    while at < len(data):
        length, source, dest, sent, last, next_seq, hwm, count = _STREAM.unpack_from(data, at)
        at += _STREAM.size
        if ranks is not None and source not in ranks and dest not in ranks:
            at += length + 16 * count
            continue
        name = data[at : at + length].decode()
        at += length
        ends = struct.unpack_from(f"<{2 * count}Q", data, at)
        at += 16 * count
        marks = Marks(hwm, zip(ends[::2], ends[1::2], strict=True))
        table[name, source, dest] = StreamMarks(name, source, dest, marks, sent, last, next_seq)
    if at != len(data):
        raise ValueError("its last stream is cut off")
    return table
