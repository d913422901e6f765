"""The three ways to have a message again: made anew, read from the spool, or copied beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ftrt.errors import ReplayMismatch, UsageError
from ftrt.ledger.spool import Spool
from ftrt.runtime.digests import DIGEST_BYTES, Digests, digests_of

_DEFAULT_BYTES = 256 << 20
# Of a spool's record: its header, and the description of dtype and shape at its longest.
_RECORD_BYTES = 512


def retention_of(
    whose: str, asked: int | None, window_bytes: int, records: int, replay: object
) -> float:
    """The bytes that a sender may keep.

    A window must fit: the receiver may need all of it before it consumes any, and what it has
    consumed becomes stable by itself.

    Parameters
    ----------
    whose : str
    asked : int or None
        What the program chose.
    window_bytes : int
        Payload bytes of a window.
    records : int
        The most messages in a window, where each takes a header of its own.
    replay : callable or None

    Raises
    ------
    UsageError
        The text names the smallest number that works.
    """
    if replay is not None:
        if asked is not None:
            raise UsageError(
                f"{whose}: retention_bytes={asked} has no meaning with replay=, which keeps no "
                "payload: leave it out"
            )
        return float("inf")
    least = window_bytes + records * _RECORD_BYTES
    if asked is None:
        return max(_DEFAULT_BYTES, 4 * least)
    if asked < least:
        raise UsageError(
            f"{whose}: retention_bytes={asked} is less than a window, so that sender and receiver "
            f"could wait for each other for ever; the smallest that works is "
            f"retention_bytes={least}, or a smaller window= or slot_bytes="
        )
    return asked


class Replayed:
    """``replay=``: the program makes a message again, the same to the bit.

    With ``digests`` that is checked: a receiver has the message as it first left.

    Attributes
    ----------
    keeps : bool
        Whether :meth:`keep` has anything to do.
    """

    kept_bytes = 0
    overhead = 0

    def __init__(self, replay: Callable, digests: Digests | None, name: str, arrays: Any):
        self._replay, self._digests, self._name = replay, digests, name
        self._arrays = arrays
        self.keeps = digests is not None
        self._last = self._freed = 0

    def resume(self, next_seq: int) -> int:
        """Number to go on from, if receivers have all before ``next_seq``."""
        return next_seq

    def keep(self, seq: int, payload: np.ndarray) -> None:
        """Note what is needed to have one message again, before it leaves."""
        self.keep_rows(seq, payload.reshape(1, *payload.shape))

    def keep_rows(self, first: int, rows: np.ndarray) -> None:
        """:meth:`keep` for the rows of an array."""
        if self._digests is not None:
            self._digests.keep(first, self._arrays.download(rows))
            self._last = first + len(rows) - 1
            self.kept_bytes = DIGEST_BYTES * (self._last - self._freed)

    def again(self, seq: int) -> np.ndarray | None:
        """The message, None if there is none.

        Raises
        ------
        ReplayMismatch
            It differs from the one that left first; it must not be sent.
        """
        value = self._replay(seq)
        if value is None:
            raise UsageError(
                f"{self._name}: replay({seq}) returned None, not message {seq}: is its return "
                "missing?"
            )
        made = self._arrays.array(value)
        if self._digests is not None:
            found = self._digests.find(seq)
            rows = self._arrays.download(made.reshape(1, *made.shape))
            if found is not None and found != int(digests_of(rows, seq)[0]):
                self.refuse(seq, "the one that was sent to other receivers before")
        return made

    def refuse(self, seq: int, other: str) -> None:
        """Raise: what ``replay(seq)`` returned is not what was sent."""
        raise ReplayMismatch(
            f"{self._name}: replay({seq}) returned another message than {other}, so it was not "
            "sent and nobody has consumed it. Make replay depend on nothing but seq (no clock, no "
            "process id, no unseeded random numbers), or use spool=True"
        )

    def free(self, upto: int) -> None:
        """Forget what every receiver stably has."""
        if self._digests is not None:
            self._digests.free(upto)
            self._freed = upto
            self.kept_bytes = DIGEST_BYTES * max(0, self._last - upto)


class Spooled:
    """``spool=True``: payloads lie on the ledger's storage."""

    keeps = True
    overhead = _RECORD_BYTES

    def __init__(self, spool: Spool, arrays: Any):
        self._spool, self._arrays = spool, arrays
        self.resume = spool.resume

    @property
    def kept_bytes(self) -> int:
        """Bytes of storage that cannot be given back yet."""
        return self._spool.kept_bytes

    def keep(self, seq: int, payload: np.ndarray) -> None:
        """Store one message before it leaves."""
        self._spool.append(seq, self._arrays.download(payload))

    def keep_rows(self, first: int, rows: np.ndarray) -> None:
        """Store the rows of an array, one message each."""
        for row, payload in enumerate(self._arrays.download(rows)):
            self._spool.append(first + row, np.asarray(payload))

    def again(self, seq: int) -> np.ndarray | None:
        """The message as it was stored."""
        found = self._spool.read(seq)
        return None if found is None else self._arrays.upload(found)

    def free(self, upto: int) -> None:
        """Forget what every receiver stably has."""
        self._spool.free(upto)


class Copied:
    """``volatile=True``: copies in this process, which heal a damaged slot and nothing more."""

    keeps = True
    overhead = 0

    def __init__(self) -> None:
        self._copies: deque[tuple[int, Any, bool]] = deque()
        self.kept_bytes = 0

    def resume(self, next_seq: int) -> int:
        """Number to go on from: these copies are of this life alone."""
        return next_seq

    def keep(self, seq: int, payload: np.ndarray) -> None:
        """Copy one message before it leaves."""
        self._add(seq, payload, False)

    def keep_rows(self, first: int, rows: np.ndarray) -> None:
        """Copy the rows of an array, one message each."""
        self._add(first, rows, True)

    def _add(self, first: int, array: np.ndarray, batch: bool) -> None:
        self._copies.append((first, array.copy(), batch))
        self.kept_bytes += array.nbytes

    def again(self, seq: int) -> np.ndarray | None:
        """The message, None if it is not copied (any more)."""
        for first, payload, batch in self._copies:
            if batch and first <= seq < first + len(payload):
                return payload[seq - first]
            if not batch and seq == first:
                return payload
        return None

    def free(self, upto: int) -> None:
        """Forget what every receiver stably has."""
        copies = self._copies
        while copies:
            first, payload, batch = copies[0]
            if first + (len(payload) if batch else 1) > upto + 1:
                return
            self.kept_bytes -= payload.nbytes
            copies.popleft()


def make_kept(
    runtime, stream: str, replay: Callable | None, spool: bool, receivers: int
) -> Replayed | Spooled | Copied:
    """What a sender with these parameters keeps."""
    rt = runtime
    name = (rt.config.ledger, stream, rt.rank, rt.since_epoch)
    if spool:
        spooled = Spool(*name)
        rt.keep_durable(spooled)
        return Spooled(spooled, rt.job.arrays)
    if replay is None:
        return Copied()
    digests = None
    if receivers > 1:  # one may have a message that another lacks: both must get the same
        digests = Digests(*name)
        rt.keep_durable(digests)
    return Replayed(replay, digests, f"rank {rt.rank}, stream {stream!r}", rt.job.arrays)
