"""Marks: which numbers of a stream took effect, as a high-water mark plus ranges above it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ftrt.errors import InvariantBroken, LedgerDamaged


class Marks:
    """A set of sequence numbers (from 1), compact where they come nearly in order.

    Everything up to `hwm` is in the set; `above` holds the rest as sorted, disjoint, closed
    ranges that touch neither each other nor `hwm`.

    Parameters
    ----------
    hwm : int
        High-water mark: all of 1..hwm are in the set.
    above : iterable of (int, int)
        Closed ranges (start, end), in any order, overlaps allowed.
    """

    __slots__ = ("hwm", "_starts", "_ends")

    def __init__(self, hwm: int = 0, above: Iterable[tuple[int, int]] = ()) -> None:
        if hwm < 0:
            raise InvariantBroken(f"a high-water mark of {hwm} is below 0")
        self.hwm = hwm
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._absorb(sorted((int(start), int(end)) for start, end in above))

    @classmethod
    def from_runs(cls, starts: Iterable[int], lengths: Iterable[int]) -> Marks:
        """Build from many runs, in any order and overlapping: sorted once, O(n log n).

        Parameters
        ----------
        starts, lengths : iterables of int, same length
            Arrays of any integer dtype are welcome; a length of 0 adds nothing.
        """
        marks = cls()
        pairs = zip(_plain(starts), _plain(lengths), strict=True)
        marks._absorb(sorted((start, start + length - 1) for start, length in pairs if length))
        return marks

    @property
    def above(self) -> list[tuple[int, int]]:
        """Closed ranges (start, end) above `hwm`, sorted and disjoint."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """All closed ranges (start, end), the one up to `hwm` included."""
        return ([(1, self.hwm)] if self.hwm else []) + self.above

    @property
    def count(self) -> int:
        """How many numbers are in the set."""
        return self.hwm + sum(self._ends) - sum(self._starts) + len(self._starts)

    @property
    def highest(self) -> int:
        """The greatest number in the set, 0 when it is empty."""
        return self._ends[-1] if self._ends else self.hwm

    def add(self, start: int, length: int = 1) -> int:
        """Add start..start+length-1.

        Returns
        -------
        int
            How many of them are new; `length` less this is the number of duplicates.
        """
        if start < 1 or length < 0:
            raise InvariantBroken(f"a mark of {length} numbers from {start} cannot exist")
        end = start + length - 1
        if end <= self.hwm or not length:
            return 0
        if start == self.hwm + 1 and not self._starts:  # in order: the usual case
            self.hwm = end
            return length
        start = max(start, self.hwm + 1)
        return end - start + 1 - self._insert(start, end)

    def contains(self, seq: int) -> bool:
        """Whether `seq` is in the set."""
        if seq <= self.hwm:
            return seq >= 1
        at = bisect_right(self._starts, seq) - 1
        return at >= 0 and seq <= self._ends[at]

    __contains__ = contains

    def covers(self, n: int) -> bool:
        """Whether all of 1..n are in the set."""
        return n <= self.hwm

    def missing(self, upto: int, since: int = 1) -> list[tuple[int, int]]:
        """Closed ranges of what is not in the set, out of since..upto."""
        gaps = []
        at = max(since, self.hwm + 1)
        for index in range(bisect_left(self._ends, at), len(self._starts)):
            if self._starts[index] > upto:
                break
            if at < self._starts[index]:
                gaps.append((at, self._starts[index] - 1))
            at = max(at, self._ends[index] + 1)
        if at <= upto:
            gaps.append((at, upto))
        return gaps

    def merge(self, other: Marks) -> None:
        """Add everything that `other` has."""
        mine = self.above
        self.hwm = max(self.hwm, other.hwm)
        self._starts, self._ends = [], []
        self._absorb(sorted(mine + other.above))

    def copy(self) -> Marks:
        """Return an independent copy."""
        twin = Marks(self.hwm)
        twin._starts, twin._ends = self._starts[:], self._ends[:]
        return twin

    def to_json(self) -> dict[str, Any]:
        """Return ``{"hwm": int, "above": [[start, end], ...]}``."""
        return {"hwm": self.hwm, "above": [[a, b] for a, b in self.above]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Marks:
        """Read what `to_json` wrote; other keys are ignored.

        Raises
        ------
        LedgerDamaged
            If the fields are missing or no marks can look like this.
        """
        try:
            return cls(int(data["hwm"]), [(int(a), int(b)) for a, b in data["above"]])
        except (KeyError, TypeError, ValueError, InvariantBroken) as error:
            raise LedgerDamaged(f"these are not marks: {data!r:.200} ({error})") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Marks):
            return NotImplemented
        return (self.hwm, self._starts, self._ends) == (other.hwm, other._starts, other._ends)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Marks({self.hwm}, {self.above})" if self._starts else f"Marks({self.hwm})"

    def _insert(self, start: int, end: int) -> int:
        """Put a range above hwm in, joined with all that it touches; return how many it repeats."""
        lo = bisect_left(self._ends, start - 1)
        hi = bisect_right(self._starts, end + 1)
        repeated = 0
        for index in range(lo, hi):
            overlap = min(end, self._ends[index]) - max(start, self._starts[index]) + 1
            repeated += overlap  # 0 where they only touch
        if lo < hi:
            start, end = min(start, self._starts[lo]), max(end, self._ends[hi - 1])
        self._starts[lo:hi], self._ends[lo:hi] = [start], [end]
        if self._starts[0] == self.hwm + 1:
            self.hwm = self._ends.pop(0)
            del self._starts[0]
        return repeated

    def _absorb(self, pairs: list[tuple[int, int]]) -> None:
        """Take sorted closed ranges into an empty `above`."""
        starts, ends, hwm = self._starts, self._ends, self.hwm
        for start, end in pairs:
            if start < 1 or end < start:
                raise InvariantBroken(f"a mark from {start} to {end} cannot exist")
            if ends and start <= ends[-1] + 1:
                ends[-1] = max(ends[-1], end)
            elif start <= hwm + 1:
                hwm = max(hwm, end)
            else:
                starts.append(start)
                ends.append(end)
        self.hwm = hwm


def _plain(values: Iterable[int]) -> Iterable[int]:
    """Give Python integers, at the speed of `tolist` where the values are an array."""
    tolist = getattr(values, "tolist", None)
    return tolist() if tolist else map(int, values)


Key = tuple[str, int, int]


@dataclass
class StreamMarks:
    """What is known of one (stream, source, dest): consumed by dest, sent by source.

    Parameters
    ----------
    stream : str
    source, dest : int
        Ranks.
    marks : Marks
        Consumed or dropped by dest.
    sent : int
        Highest number that the source recorded before it left.
    last : int
        Last number of the closed stream; 0 while it is open.
    next_seq : int
        One past everything that the spool or any receiver has.
    """

    stream: str
    source: int
    dest: int
    marks: Marks = field(default_factory=Marks)
    sent: int = 0
    last: int = 0
    next_seq: int = 1

    @property
    def key(self) -> Key:
        """The triple (stream, source, dest)."""
        return (self.stream, self.source, self.dest)

    def merge(self, other: StreamMarks) -> None:
        """Add what another epoch or another ledger knows of the same triple."""
        if self.key != other.key:
            raise InvariantBroken(f"marks of {other.key} cannot be merged into those of {self.key}")
        if self.last and other.last and self.last != other.last:
            raise InvariantBroken(f"{self.key} was closed at {self.last} and at {other.last}")
        self.marks.merge(other.marks)
        self.sent = max(self.sent, other.sent)
        self.last = max(self.last, other.last)
        self.next_seq = max(self.next_seq, other.next_seq)

    def copy(self) -> StreamMarks:
        """Return an independent copy."""
        return StreamMarks(*self.key, self.marks.copy(), self.sent, self.last, self.next_seq)

    def to_json(self) -> dict[str, Any]:
        """Return one entry of the epoch record's `marks`."""
        head = {"stream": self.stream, "source": self.source, "dest": self.dest}
        tail = {"sent": self.sent, "last": self.last, "next_seq": self.next_seq}
        return {**head, **self.marks.to_json(), **tail}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StreamMarks:
        """Read what `to_json` wrote; raises LedgerDamaged if it cannot be that."""
        try:
            names = (str(data["stream"]), int(data["source"]), int(data["dest"]))
            numbers = (int(data["sent"]), int(data["last"]), int(data["next_seq"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerDamaged(f"these are no stream's marks: {data!r:.200} ({error})") from error
        return cls(*names, Marks.from_json(data), *numbers)


def merged(*tables: dict[Key, StreamMarks]) -> dict[Key, StreamMarks]:
    """Merge tables of stream marks into a new one; the given ones stay as they are."""
    result: dict[Key, StreamMarks] = {}
    for table in tables:
        for key, entry in table.items():
            if key in result:
                result[key].merge(entry)
            else:
                result[key] = entry.copy()
    return result
