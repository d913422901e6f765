"""What the two ends of a stream between two ranks offer, whatever carries it. No call blocks."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ftrt.transport.slots import Verdict


class Frame(NamedTuple):
    """One verified frame as the receiver sees it.

    ``array`` is read-only and lies in the slot until the frame is released. With ``records`` its
    first axis counts ``count`` messages, the first of which is ``seq``. ``base`` is the array that
    every view of ``array`` refers to, held beside it by the channel in one place alone; None if
    ``array`` does not lie in a slot.
    """

    number: int
    seq: int
    count: int  # type: ignore[assignment]  # of messages; tuple.count is not missed
    records: bool
    epoch: int
    array: np.ndarray
    verdict: Verdict
    base: np.ndarray | None = None


class SendChannel(Protocol):
    """The sender's end."""

    def try_send(self, seq: int, array, epoch: int) -> bool:
        """Send one message; False if there is no credit for it now."""

    def try_send_batch(self, first_seq: int, records, epoch: int) -> int:
        """Send equal records, one a row; how many were taken (the rest is to be tried again)."""

    def close(self, last_seq: int) -> None:
        """Say that ``last_seq`` was the last message (first seq - 1 if there was none)."""

    def nacked(self) -> int | None:
        """Number of a frame that the receiver could not read, if any."""

    def first_seq_of(self, frame: int) -> int:
        """First seq in a frame that was sent and not overwritten since."""

    def rewrite(self, frame: int, array, epoch: int) -> None:
        """Heal the frame asked for from a pristine copy of its message or records."""

    @property
    def frames_sent(self) -> int:
        """Frames published so far; the last one's number."""

    @property
    def frames_released(self) -> int:
        """Frames that the receiver has given back."""

    @property
    def free_slots(self) -> int:
        """Frames that could be sent now."""


class RecvChannel(Protocol):
    """The receiver's end."""

    def poll(self) -> Frame | None:
        """The next frame, or None if none can be read now."""

    def release(self, number: int) -> None:
        """Give back all frames up to ``number``; arrays that lie in them must not be used then."""

    @property
    def finished(self) -> bool:
        """The sender has closed and all was read."""

    @property
    def exhausted(self) -> bool:
        """The sender's end was sealed and all that counts was read."""
