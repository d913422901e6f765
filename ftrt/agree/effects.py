"""What the recovery state machine asks for. The host does them one by one, in the given order."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrt.agree.epoch import EpochId
from ftrt.agree.marks import Key, StreamMarks


@dataclass(frozen=True)
class Kill:
    """End a process that is excluded.

    Order: before the CloseLedgers of its epoch. Nothing waits for its end: what makes a zombie
    harmless is the closed ledger and the record, so a process that is gone already is no error.
    """

    process: int


@dataclass(frozen=True)
class CloseLedgers:
    """Close the ledgers of these ranks in `epoch`, read the marks, answer LedgersClosed.

    Order: before every CreateRecord of a successor. Closing again is harmless: a closed ledger
    stays as it is.
    """

    epoch: EpochId
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class CreateRecord:
    """Create the record of `epoch` exclusively; answer RecordCreated, RecordFound or RecordFailed.

    Order: after every CloseLedgers of `parent`; Publish only after the record exists.
    `dead` are the processes, spares too, that died since the record before; `inherited` the ranks
    that a process with another rank takes over, which `promotions` does not list.
    """

    epoch: EpochId
    parent: EpochId
    members: tuple[tuple[int, int], ...]
    spares: tuple[int, ...]
    marks: dict[Key, StreamMarks] = field(default_factory=dict)
    promotions: tuple[tuple[int, int], ...] = ()
    dead: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    inherited: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Publish:
    """Let every process of the host see `epoch`; answer EpochPublished.

    Order: after the record of `epoch` exists (durable at the job's class).
    """

    epoch: EpochId


@dataclass(frozen=True)
class Promote:
    """Tell a waiting process that it acts for `rank` from `epoch` on.

    Order: after the Publish of `epoch`; no process is promoted by a record that may not exist.
    """

    process: int
    rank: int
    epoch: EpochId


@dataclass(frozen=True)
class Inherit:
    """Tell a process with a rank of its own that it acts for `rank` too, from `epoch` on.

    Order: as for Promote.
    """

    process: int
    rank: int
    epoch: EpochId


@dataclass(frozen=True)
class Note:
    """A line for the timeline; no order is promised."""

    text: str
    kind: str = "info"
    process: int | None = None


@dataclass(frozen=True)
class Fail:
    """This attempt cannot go on; nothing follows it but a Restarted.

    Order: last of its tuple, and no Publish comes after it. `restart` says that an attempt is
    left; `fenced` that a later epoch exists without us: then nobody here may act any more.
    """

    reason: str
    restart: bool = False
    fenced: bool = False


@dataclass(frozen=True)
class End:
    """All ranks finished. Order: last of its tuple; only in a published epoch."""

    epoch: EpochId


Effect = Kill | CloseLedgers | CreateRecord | Publish | Promote | Inherit | Note | Fail | End
