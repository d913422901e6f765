"""Layout of the board: which 64-bit word means what. Imports nothing that takes time."""

from __future__ import annotations

import enum
from pathlib import Path

MAGIC = 0x4654_5254_424F_4152
VERSION = 5
HEADER_WORDS = 4096
ENTRY_WORDS = 64
#: Robust mutexes that each process holds: their watchers wait on different cores.
MUTEXES = 2

#: Most logical ranks of a job: each has one word in each of three arrays of the header.
MAX_RANKS = 1024
#: Messages that each rank sent or consumed, then what :meth:`Runtime.progress` said.
MESSAGES, DONE, TOTAL = 128, 128 + MAX_RANKS, 128 + 2 * MAX_RANKS
#: Until when the link of the fault with this number is cut (monotonic ns), for fault injection.
CUTS, MAX_CUTS = 128 + 3 * MAX_RANKS, 512


class Status(enum.IntEnum):
    """State of the attempt, as the agent publishes it."""

    STARTING = 0
    RUNNING = 1
    ENDED = 2
    FAILED = 3


class Phase(enum.IntEnum):
    """What a process says it is doing."""

    ABSENT = 0
    STARTING = 1
    READY = 2
    RUNNING = 3
    WAITING = 4
    FINISHED = 5  # its work is done, and nobody needs anything of it
    RAISED = 6
    LEAVING = 7  # its work is done, but a receiver may still need a message again


class Heir(enum.IntEnum):
    """Whether a process can inherit a rank; changed by compare-and-swap alone."""

    NO = 0
    WILLING = 1
    HELD = 2  # the agent decides: the process can become an heir, and must not leave


class Word(enum.IntEnum):
    """Words of the header."""

    MAGIC = 0
    VERSION = 1
    PROCESSES = 2
    RANKS = 3
    EPOCH = 4
    STATUS = 5
    AGENT_PID = 6
    AGENT_BEAT = 7
    RECOVERING = 8
    SHRINK = 9  # rounds in which MPI's world was shrunk (32 bits), the epoch of the last (32)
    SPARES = 10  # spares that live and have no rank
    REVOKED = 11  # the epoch that a rank asked to end, though nobody died
    COMM = 12  # the last epoch whose communicator is made (32 bits), the last that this is known of


class Field(enum.IntEnum):
    """Words of one process's entry."""

    PID = 0
    START_TICKS = 1
    PHASE = 2
    BEAT = 3
    RANK_PLUS_1 = 4
    SINCE_EPOCH = 5
    BELL = 6
    SLEEPING = 7
    PROGRESS = 8
    STALL_LIMIT_MS = 9
    CANDIDATE = 10
    FAULT_DUE = 11  # 0, or 1 + number of the fault that it is to inflict on itself
    OWNER = 12  # thread that holds the mutex while the process lives, 0 before it does
    HEIR = 13  # an Heir
    IDLE = 14  # 1 while it has nothing to do but to be a possible heir
    COMM = 15  # the epoch whose communicator it has asked for
    MUTEX = 16  # and 24: MUTEXES of eight words each
    STRUCK = 32  # when it was ordered to end (monotonic ns), 0 where nobody did that
    # When the phases of its take-over ended (monotonic ns), 0 where it took over nothing.
    REBUILT = 33
    RESTORED = 34
    RESENT = 35
    FIRST = 36


def job_directory(job: str, attempt: int) -> Path:
    """Directory of this attempt's shared memory (rings and board)."""
    return Path("/dev/shm") / f"ftrt-{job[:8]}-{attempt}"


def mpi_directory(job: str) -> Path:
    """Directory of MPI's own shared memory, which a killed rank would leave behind."""
    return Path("/dev/shm") / f"ftrt-{job[:8]}-mpi"
