"""The rule of the paper that trusts the sender's completion, on the same wire as ours.

The sender sends again what it has not seen complete, the receiver does not deduplicate, and a
channel that was given up is invalid with all that was delivered in it. Only the campaign has it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ftrt.campaign.cells import GRAPH
from ftrt.campaign.observed import ObservedReceiver, ObservedSender, sends_in_flight
from ftrt.runtime.receiver import Message, _Held


def not_complete(lane: Any, grain: int = 1) -> list[int]:
    """Numbers that a lane's channels took and whose completion its sender has not seen.

    With a ``grain`` above 1 so many messages have one completion: all of them are open until the
    last was sent and is complete.
    """
    found = {
        seq
        for first, count, complete in sends_in_flight(lane.ring)
        for seq in range(first, first + count)
        if not complete
    }
    for first, last in lane.backlog:
        found.update(range(first, last + 1))
    if grain > 1:
        begins = {(seq - 1) // grain * grain + 1 for seq in found}
        if lane.sent_upto % grain:
            begins.add(lane.sent_upto // grain * grain + 1)
        for begin in begins:
            found.update(range(begin, min(begin + grain - 1, lane.sent_upto) + 1))
    return sorted(found)


class CompletionSender(ObservedSender):
    """Sends again what it has not seen complete.

    Attributes
    ----------
    grain : int
        Messages that have one completion.
    """

    grain = 1
    _open: list[int] | None = None

    def abort(self, lanes: list[Any] | None = None) -> None:
        """Look at the completions first: what an abort ends looks complete afterwards."""
        self._open = not_complete(self.lane, self.grain)
        super().abort(lanes)

    def _renew(self, lane: Any) -> None:
        again = not_complete(lane, self.grain) if self._open is None else self._open
        self._open = None
        super()._renew(lane)
        lane.backlog = deque((seq, seq) for seq in again)
        lane.again = None

    def free_kept(self) -> None:
        """Nothing is freed by consumption: this rule does not know of it."""


class CompletionReceiver(ObservedReceiver):
    """Takes whatever comes, and nothing of a channel that was given up."""

    def _poll(self) -> Any:
        if self._ring is not None and self._ring.exhausted:
            self._next_ring()
        return super()._poll()

    def _take(self, frame: Any) -> Message:
        number, seq, count, records, _, array, _, base = frame
        held = _Held(number, count, base)
        self._frames.append(held)
        self._taken_upto = max(self._taken_upto, seq + count - 1)
        return Message(self, held, seq, count, array, records)


def completion_of(cell: Any) -> int:
    """How many messages have one completion on a path."""
    return GRAPH if cell.path == "graph" else 1
