"""What the recovery state machine is told (events), and the states it can be in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.heirs import Heirs
from ftrt.agree.marks import Key, StreamMarks


class State(Enum):
    """Where a host's recovery stands."""

    RUNNING = "running"
    CLOSING = "closing"
    RECORDING = "recording"
    PUBLISHING = "publishing"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class ProcessDied:
    """A process is gone, or is excluded. `by` names the evidence: pidfd, mutex, evicted, ..."""

    process: int
    by: str


@dataclass(frozen=True)
class ProcessFinished:
    """A process ended its work: all that it had to do took effect."""

    process: int


@dataclass(frozen=True)
class Suspected:
    """A process gives no sign of life; no epoch changes for that."""

    process: int


@dataclass(frozen=True)
class Cleared:
    """A suspected process lives."""

    process: int


@dataclass(frozen=True)
class CloseAsked:
    """Another host ends `epoch`, or is to be left out of its successor: nobody here need be dead.

    It may come again and late.
    """

    epoch: EpochId


@dataclass(frozen=True)
class LedgersClosed:
    """All ledgers of `epoch` are closed; `marks` is what counts in them, final.

    `left_out` are processes of hosts that did not take part: they are no members of the successor,
    should our record of it be the one. `heirs` says who could take over ranks that no spare can.
    """

    epoch: EpochId
    marks: dict[Key, StreamMarks] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    heirs: Heirs = field(default_factory=Heirs)


@dataclass(frozen=True)
class RecordCreated:
    """Our record of `epoch` exists: the exclusive creation succeeded."""

    epoch: EpochId


@dataclass(frozen=True)
class RecordFound:
    """Somebody else's record of that counter exists. Its marks win over ours.

    `marks` None means that the record's are those we had anyway.
    """

    epoch: EpochId
    members: tuple[tuple[int, int], ...]
    spares: tuple[int, ...] = ()
    marks: dict[Key, StreamMarks] | None = None


@dataclass(frozen=True)
class RecordFailed:
    """The record of `epoch` could not be written, and does not exist; `reason` says why."""

    epoch: EpochId
    reason: str


@dataclass(frozen=True)
class EpochPublished:
    """Every process of the host can see `epoch`."""

    epoch: EpochId


@dataclass(frozen=True)
class Restarted:
    """The whole job was started again: `membership` is all new processes.

    From here on all events are about these; the processes of the attempt before are not told of.
    """

    attempt: int
    membership: Membership


Event = (
    ProcessDied
    | ProcessFinished
    | Suspected
    | Cleared
    | CloseAsked
    | LedgersClosed
    | RecordCreated
    | RecordFound
    | RecordFailed
    | EpochPublished
    | Restarted
)
EVENTS: tuple[type, ...] = Event.__args__
