"""Every error ftrt raises, split by who has to act on it."""

from __future__ import annotations


class FtrtError(Exception):
    """Root of all errors of this package."""


class UsageError(FtrtError):
    """Something was asked for that cannot work; the text says what to type."""


class Fenced(FtrtError):
    """A later epoch exists without this process; nothing of the call was applied."""


class RecoveryImpossible(FtrtError):
    """No way is left to go on within this attempt; the text names the reason."""


class PeerFailed(FtrtError):
    """A call cannot be completed because of the failure of a peer."""


class DeadlineExceeded(FtrtError):
    """A bounded wait ended; the text says what was waited for, on which rank and epoch."""


class ReplayMismatch(FtrtError):
    """A regenerated message differs from the one that a receiver already has."""


class LedgerError(FtrtError):
    """A ledger file or its directory is unusable; the text names the file and why."""


class LedgerDamaged(LedgerError):
    """A ledger file is truncated, flipped, or of another job, attempt or version."""


class InvariantBroken(FtrtError):
    """A state that must never occur was seen; the process stops rather than go on."""
