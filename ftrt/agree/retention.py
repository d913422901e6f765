"""A sender's two budgets: how much may be under way, and how much it keeps for a resend."""

from __future__ import annotations

from typing import Literal

from ftrt.agree.marks import Marks
from ftrt.errors import InvariantBroken, UsageError

Cause = Literal["survivor", "receiver_died"]


def validate(window: int, retention: int, batch: int = 1, stable_every: int = 1) -> None:
    """Refuse budgets with which sender and receiver could wait for each other for ever.

    A receiver that takes `batch` messages at a time needs them all under way. It may have
    consumed up to ``stable_every - 1`` messages that are not announced as stable yet; these fill
    the retention, and a whole batch must still fit beside them.

    Raises
    ------
    UsageError
        The text names the smallest size that works.
    """
    if batch < 1 or stable_every < 1:
        raise UsageError(f"batch={batch} and stable_every={stable_every} must be at least 1")
    if window < batch:
        raise UsageError(
            f"window={window} messages is too small for a receiver that takes {batch} at a time; "
            f"the smallest that works is window={batch}"
        )
    least = batch + stable_every - 1
    if retention < least:
        raise UsageError(
            f"retention={retention} messages would fill before the receiver's effects are stable "
            f"(announced every {stable_every}); the smallest that works is retention={least}"
        )


class Budget:
    """Credit and retention of one (stream, source, dest), counted in messages.

    Credit is what is sent and not yet consumed; it is freed by *consumed*. Retention is what is
    sent and not yet stable; it is freed by *stable*. Stable follows consumed.

    Parameters
    ----------
    window : int
        Credit: the most messages under way.
    retention : int
        The most messages kept.
    batch, stable_every : int
        See `validate`, which is called with them.
    """

    __slots__ = ("window", "retention", "sent", "consumed", "stable", "_counts")

    def __init__(self, window: int, retention: int, batch: int = 1, stable_every: int = 1) -> None:
        validate(window, retention, batch, stable_every)
        self.window = window
        self.retention = retention
        self.sent, self.consumed, self.stable = Marks(), Marks(), Marks()
        self._counts = [0, 0, 0]

    @property
    def credit_left(self) -> int:
        """How many messages may be put under way, as far as credit goes."""
        return self.window - (self._counts[0] - self._counts[1])

    @property
    def retention_left(self) -> int:
        """How many messages may be put under way, as far as retention goes."""
        return self.retention - (self._counts[0] - self._counts[2])

    def can_send(self, length: int = 1) -> bool:
        """Whether `length` more messages fit both budgets."""
        return length <= self.credit_left and length <= self.retention_left

    def go_on_from(self, have: Marks) -> None:
        """Start as the successor of a dead sender: what a record has is sent, consumed and stable.

        However much that is, the budgets are all free.
        """
        if self._counts != [0, 0, 0]:
            raise InvariantBroken(f"{self!r} has begun already")
        self.sent, self.consumed, self.stable = have.copy(), have.copy(), have.copy()
        self._counts = [have.count] * 3

    def on_sent(self, start: int, length: int = 1) -> None:
        """Count start..start+length-1 as sent; a resend counts once."""
        gaps = self.sent.missing(start + length - 1, start)
        fresh = sum(end - first + 1 for first, end in gaps)
        if not self.can_send(fresh):
            raise InvariantBroken(f"{start}+{length} was sent beyond {self!r}")
        self._counts[0] += self.sent.add(start, length)

    def on_consumed(self, start: int, length: int = 1) -> None:
        """Free the credit of start..start+length-1."""
        self._follow(self.sent, start, length, "consumed", "sent")
        self._counts[1] += self.consumed.add(start, length)

    def on_stable(self, start: int, length: int = 1) -> None:
        """Free the retention of start..start+length-1."""
        self._follow(self.consumed, start, length, "stable", "consumed")
        self._counts[2] += self.stable.add(start, length)

    def resend_set(self, cause: Cause) -> list[tuple[int, int]]:
        """Return the closed ranges to send again.

        Parameters
        ----------
        cause : 'survivor' or 'receiver_died'
            A survivor's memory still has what it consumed; of a dead receiver only what is
            stable is left.
        """
        if cause not in ("survivor", "receiver_died"):
            raise InvariantBroken(f"{cause!r} is no cause of a resend")
        have = self.consumed if cause == "survivor" else self.stable
        return [gap for start, end in self.sent.ranges for gap in have.missing(end, start)]

    def receiver_replaced(self) -> list[tuple[int, int]]:
        """Forget what a dead receiver consumed without being stable; return what to send again.

        Credit may be overdrawn afterwards: nothing new is sent until the resent is consumed.
        """
        ranges = self.resend_set("receiver_died")
        self.consumed = self.stable.copy()
        self._counts[1] = self._counts[2]
        return ranges

    def __repr__(self) -> str:
        return (
            f"Budget(window={self.window}, retention={self.retention}, sent={self.sent}, "
            f"consumed={self.consumed}, stable={self.stable})"
        )

    def _follow(self, before: Marks, start: int, length: int, what: str, must: str) -> None:
        if start < 1 or length < 0 or before.missing(start + length - 1, start):
            raise InvariantBroken(f"{start}+{length} is {what} but was not {must}: {self!r}")
