"""One destination of a stream: its channel, what it has, and what must go there again."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from ftrt.agree.marks import Marks
from ftrt.ledger.log import SENT
from ftrt.runtime.hot import Bell, Recorder
from ftrt.transport.factory import Link, earlier_channels, make_send

_GENERATIONS_PER_EPOCH = 1000
# The ledger of a receiver is read at most this often; a sync of class power takes longer.
_LOOK_EVERY_S = 0.005


class Lane:
    """The way from a sender to one receiver.

    Attributes
    ----------
    ring
        The sender's end of the channel in use.
    earlier : list
        Channels of before that the receiver may still be reading.
    backlog : deque of (int, int)
        Numbers that must be sent again before anything new.
    sent_upto : int
        The last number that any channel took.
    closing : bool
        The end is still to be told.
    lost : Marks
        Numbers that nobody can send any more (volatile senders only).
    """

    def __init__(self, runtime, stream: str, dest: int, state, *, slots: int, slot_bytes: int):
        self._runtime, self.stream, self.dest = runtime, stream, dest
        self._sizes = {"slots": slots, "slot_bytes": slot_bytes}
        self._generation = 0
        self.have = have_of(state)
        self.lost = Marks()
        self.earlier: list[Any] = []
        self._unsure_upto = 0
        self._freed = 0
        self._look_at_s = 0.0
        self.ring = self._make_ring()
        log = runtime.stream_log(SENT, stream, runtime.rank, dest)
        self.recorder = Recorder(runtime, log, counts=False)  # what is sent again does not count
        self.bell = Bell(runtime.job, dest)
        self.backlog: deque[tuple[int, int]] = deque()
        self.again: tuple[int, np.ndarray] | None = None
        self.sent_upto = 0
        self.closing = False

    @property
    def link(self) -> Link:
        """The link that the channels of this lane belong to."""
        return self._runtime.link(self.stream, self._runtime.rank, self.dest)

    def _make_ring(self):
        generation = self._runtime.since_epoch * _GENERATIONS_PER_EPOCH + self._generation
        self.earlier = earlier_channels(self.link, generation)
        return make_send(self.link, generation, **self._sizes)

    def renew(self) -> None:
        """Go on in a new channel, with all that the destination lacks."""
        self._generation += 1
        self.ring = self._make_ring()
        self.begin(self.sent_upto)

    def begin(self, sent_upto: int) -> None:
        """Everything that a channel took and that the destination lacks goes out again."""
        self.sent_upto = self._unsure_upto = sent_upto
        self.backlog, self.again = deque(self.have.missing(sent_upto)), None

    @property
    def unsure(self) -> bool:
        """Whether the receiver may still need what earlier channels brought."""
        return self._unsure_upto > 0

    def free_upto(self) -> int:
        """Number up to which the destination has all, at the class of the job.

        The channel in use tells what its receiver gave back. It says nothing of earlier channels,
        and nothing of a disk: the receiver's ledger does.
        """
        rt = self._runtime
        if rt.config.several and not rt.stable_is_later:
            return self._given_back()
        if not self._unsure_upto:
            upto = self.ring.oldest_seq_held - 1
            if upto <= self._freed:
                return self._freed
            if not rt.stable_is_later:
                self._freed = upto
                return upto
        return self._look()

    def _given_back(self) -> int:
        """:meth:`free_upto` where the receiver's ledger may be another host's, and not written out.

        Each channel of messages brings all that is missing, in ascending order: what it was given
        back is consumed, and what no channel has to bring the record's marks name.
        """
        ring, upto = self.ring, self.sent_upto
        if ring.frames_sent > ring.frames_released:
            upto = min(upto, ring.oldest_seq_held - 1)
        if self.backlog:
            upto = min(upto, self.backlog[0][0] - 1)
        self._freed = max(self._freed, upto)
        if self._freed >= self._unsure_upto:
            self._unsure_upto, self.earlier = 0, []
        return self._freed

    def _look(self) -> int:
        """:meth:`free_upto` as the receiver's ledger has it, now and then."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_EVERY_S
            upto = self._runtime.stable_upto(self.stream, self.dest, self.lost)
            self._freed = max(self._freed, upto)
            if self._freed >= self._unsure_upto:
                self._unsure_upto = 0
                self.earlier = []
        return self._freed

    @property
    def settled(self) -> bool:
        """Whether the receiver needs nothing of this sender any more, whoever dies.

        What it consumed it has. A ring tells the end of the stream beyond the sender's death;
        over messages a successor of the receiver would wait for somebody to tell it.
        """
        job = self._runtime.job
        if job.is_finished(self.dest):
            return True
        if job.plane or self.backlog or self.closing:
            return False
        return self.free_upto() >= self.sent_upto or self._look() >= self.sent_upto


def have_of(state) -> Marks:
    """What a receiver consumed, with what lies complete in front of it."""
    marks = state.marks.copy()
    if state.delivered >= 1:
        marks.add(1, state.delivered)
    return marks
