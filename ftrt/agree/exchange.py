"""Marks between those whom they concern: each host's agent tells the agents at the other ends of
its streams what its closed ledgers hold of them.

What a closed ledger holds is final, so it is told at once, beside the agreement, and needs none of
its own: the record says whose ledgers count. Nobody handles more than the marks of its own streams.
Of a member that died before it told, and of those that the record leaves out, the written ledger is
read by whoever lacks it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from ftrt.agree.epoch import EpochId
from ftrt.agree.marks import Key, StreamMarks, merged
from ftrt.errors import InvariantBroken

Table = dict[Key, StreamMarks]


@dataclass(frozen=True)
class Told:
    """A message: what `sender`'s closed ledgers of the epoch before `epoch` hold of our streams."""

    sender: int
    epoch: EpochId
    marks: Table


class Exchange:
    """One agent's marks for the epoch that is being made.

    Parameters
    ----------
    me : int
    epoch : EpochId
        The epoch to be made.
    marks : mapping of (stream, source, dest) to StreamMarks
        Read from this host's closed ledgers.
    home : mapping of int to int
        Rank to the agent of its host, in the epoch that ends.
    """

    def __init__(
        self, me: int, epoch: EpochId, marks: Mapping[Key, StreamMarks], home: Mapping[int, int]
    ) -> None:
        self.me, self.epoch = me, epoch
        self._home = home
        self._of: dict[int, Table] = {me: dict(marks)}
        #: Agents at the other ends of our streams.
        self.others = {home[rank] for key in marks for rank in key[1:]} - {me}

    def of(self, agent: int) -> Table:
        """Return what an agent told of our streams; nothing if it has not."""
        return self._of.get(agent, {})

    def begin(self) -> list[tuple[int, Told]]:
        """Return what to send to whom."""
        parts: dict[int, Table] = {}
        for key, entry in self._of[self.me].items():
            for agent in {self._home[rank] for rank in key[1:]} - {self.me}:
                parts.setdefault(agent, {})[key] = entry
        return [(agent, Told(self.me, self.epoch, parts[agent])) for agent in sorted(parts)]

    def handle(self, told: Told) -> None:
        """Take in what another agent tells, or what was read of its ledgers; twice is harmless.

        Raises
        ------
        InvariantBroken
            It belongs to another epoch, differs from what was told before, or is not for us.
        """
        if told.epoch != self.epoch:
            raise InvariantBroken(f"marks for epoch {told.epoch} came to epoch {self.epoch}")
        for key in told.marks:
            if self.me not in (self._home[key[1]], self._home[key[2]]):
                raise InvariantBroken(f"marks of {key} came to agent {self.me}, which has no end")
        if self._of.setdefault(told.sender, told.marks) != told.marks:
            raise InvariantBroken(f"agent {told.sender} told two things of a closed ledger")

    def lacks(self, agents: Container[int]) -> list[int]:
        """Return whose marks have not come, of those at the other ends of our streams."""
        return sorted(a for a in self.others if a in agents and a not in self._of)

    def result(self) -> Table:
        """Return the marks of all streams that end here, all that came merged.

        Raises
        ------
        InvariantBroken
            Some have not come.
        """
        late = self.lacks(self.others)
        if late:
            raise InvariantBroken(f"the marks of agents {late} have not come")
        return merged(*self._of.values())
