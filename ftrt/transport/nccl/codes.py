"""Every result code of NCCL and RCCL: what it says of the communicator, and what ftrt does."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Result(enum.IntEnum):
    """``ncclResult_t``."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class Severity(enum.Enum):
    """What a code says of the communicator that it came from."""

    NONE = "none"
    PENDING = "in progress"  # not a failure: every other call is invalid until it has passed
    CALL = "the call had no effect"  # the communicator is as it was
    FATAL = "the communicator is lost"
    PROCESS = "the CUDA context is lost"  # sticky: nothing in this process can use the GPU


class Action(enum.Enum):
    """What ftrt does about a code."""

    GO_ON = "go on"
    POLL = "poll the asynchronous error until it has passed, with a deadline"
    RAISE = "raise: a fault of this program or of ftrt"
    GIVE_UP = "give the channel up, go on over a standby communicator, abort this one aside"
    END_PROCESS = (
        "end this process if its GPU is lost, so that a spare on another one replaces it; else as "
        "with a lost communicator"
    )


class Meaning(NamedTuple):
    """One row of the table."""

    text: str
    severity: Severity
    action: Action


MEANINGS: dict[Result, Meaning] = {
    Result.SUCCESS: Meaning("no error", Severity.NONE, Action.GO_ON),
    Result.UNHANDLED_CUDA_ERROR: Meaning(
        "a CUDA or HIP call failed", Severity.PROCESS, Action.END_PROCESS
    ),
    Result.SYSTEM_ERROR: Meaning(
        "a system call failed, a network failure for example", Severity.FATAL, Action.GIVE_UP
    ),
    Result.INTERNAL_ERROR: Meaning("a bug inside the library", Severity.FATAL, Action.GIVE_UP),
    Result.INVALID_ARGUMENT: Meaning(
        "an argument is invalid, or the communicator is still in progress, or revoked",
        Severity.CALL,
        Action.RAISE,
    ),
    Result.INVALID_USAGE: Meaning("calls came in a wrong order", Severity.FATAL, Action.RAISE),
    Result.REMOTE_ERROR: Meaning(
        "a remote process is gone, or its network is", Severity.FATAL, Action.GIVE_UP
    ),
    Result.IN_PROGRESS: Meaning("a call still runs", Severity.PENDING, Action.POLL),
    Result.TIMEOUT: Meaning("a peer did not answer in time", Severity.FATAL, Action.GIVE_UP),
}


def meaning(code: int) -> Meaning:
    """The row of a code; one that this table lacks is fatal, as an unknown state must be."""
    try:
        return MEANINGS[Result(code)]
    except ValueError:
        return Meaning(f"unknown result {code}", Severity.FATAL, Action.GIVE_UP)


def describe(code: int) -> str:
    """A code in words, for errors and events."""
    name = Result(code).name.lower().replace("_", " ") if code in set(Result) else f"code {code}"
    return f"{name} ({meaning(code).text})"
