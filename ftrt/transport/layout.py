"""The ring file: a control page, then slots of a fixed size; creation, mapping and its words."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from pathlib import Path

import numpy as np

from ftrt import atomics
from ftrt.errors import FtrtError, RecoveryImpossible, UsageError
from ftrt.ledger.layout import guard, unguard
from ftrt.transport.slots import PREFIX_BYTES

MAGIC = 0x4654_5254_5249_4E47
VERSION = 1
PAGE = 4096
SLOT_ALIGN = 64

# Constants of the ring: written before the file gets its name.
W_MAGIC, W_VERSION, W_SLOTS, W_SLOT_BYTES, W_JOB, W_STREAM, W_SOURCE, W_DEST = range(8)
W_GENERATION, W_FIRST_SEQ, W_EPOCH = 8, 9, 10
# Words that change lie 128 bytes apart: the adjacent-line prefetcher moves pairs of lines.
W_RELEASED = 32  # receiver generation (16) | frames released (48), changed by CAS only
W_SEALED = 48  # 0, or 1 + last frame of the sender that counts
W_CLOSED = 64  # 0, or guarded: 2 + last seq at the sender's close
W_CLOSED_FRAMES = 65  # guarded: frames sent at close
W_NACK = 80  # 0, or the frame to be rewritten
W_SENT = 96  # frames sent; a slot that does not show one of them is damaged

FRAME_BITS = 48
FRAME_MASK = (1 << FRAME_BITS) - 1
GENERATION_MASK = 0xFFFF


class RingMap:
    """A mapped ring file, with typed access to its control page."""

    def __init__(self, path: str | os.PathLike, descriptor: int, populate: bool = False) -> None:
        self.path = Path(path)
        size = os.fstat(descriptor).st_size
        if size <= PAGE:
            raise FtrtError(f"{path}: {size} bytes are too short for a ring")
        flags = mmap.MAP_SHARED
        if populate:  # takes as long as the ring is large: not where a recovery waits for it
            flags |= getattr(mmap, "MAP_POPULATE", 0)
        self.memory = mmap.mmap(descriptor, size, flags=flags)
        self.words = np.frombuffer(self.memory, np.uint64)
        self.octets = np.frombuffer(self.memory, np.uint8)

    @classmethod
    def open(cls, path: str | os.PathLike) -> RingMap:
        """Map an existing ring and check that it is one."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            ring = cls(path, descriptor)
        finally:
            os.close(descriptor)
        if ring[W_MAGIC] != MAGIC or ring[W_VERSION] != VERSION:
            raise FtrtError(f"{path} is not a ring of version {VERSION}")
        if len(ring.octets) != file_size(ring[W_SLOTS], ring[W_SLOT_BYTES]):
            raise FtrtError(f"{path} has {len(ring.octets)} bytes, not what its header says")
        return ring

    def __getitem__(self, word: int) -> int:
        return atomics.load(self.words, word)

    def swap(self, word: int, expected: int, desired: int) -> int:
        """CAS on a control word; what it held."""
        return atomics.swap_if(self.words, word, expected, desired)

    @property
    def stride_words(self) -> int:
        """Words from one slot to the next."""
        return (PREFIX_BYTES + self[W_SLOT_BYTES]) // 8


def put_end(words: np.ndarray, last_seq: int, frames: int) -> None:
    """Say that ``last_seq``, in frame ``frames`` at the latest, was the last message."""
    atomics.store(words, W_CLOSED_FRAMES, guard(int(frames)))
    atomics.store(words, W_CLOSED, guard(int(last_seq) + 2))


def end_of(ring: RingMap) -> tuple[int, int] | None:
    """``(last seq, frames)`` of a closed stream, None while it is open.

    Raises
    ------
    RecoveryImpossible
        A word was damaged: a stream must not end before all of it was read.
    """
    word = ring[W_CLOSED]
    if not word:
        return None
    last, frames = unguard(word), unguard(ring[W_CLOSED_FRAMES])
    if last is None or frames is None:
        raise RecoveryImpossible(
            f"{ring.path}: the end of the stream is damaged, so that nobody knows how much of it "
            "is missing; nothing that was committed is lost, `ftrt run --resume` goes on from the "
            "ledger"
        )
    return last - 2, frames


def file_size(slots: int, slot_bytes: int) -> int:
    """Bytes of a ring file."""
    return PAGE + slots * (PREFIX_BYTES + slot_bytes)


def job_hash(job) -> int:
    """64 bits that stand for a job's name or id."""
    data = job.bytes if hasattr(job, "bytes") else job
    data = data if isinstance(data, bytes) else str(data).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def create_file(path: str | os.PathLike, constants: dict[int, int]) -> RingMap:
    """Make the file under a temporary name with all its memory allocated, then name it.

    Memory that is only reserved would raise SIGBUS at some later message when /dev/shm is full.
    """
    path = Path(path)
    size = file_size(constants[W_SLOTS], constants[W_SLOT_BYTES])
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        ring = RingMap(path, descriptor, populate=True)
        for word, value in constants.items():
            ring.words[word] = value
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise FtrtError(
            f"no room for a ring of {size} bytes in {path.parent} "
            f"({error.strerror}): free some, or ask for fewer or smaller slots"
        ) from error
    finally:
        os.close(descriptor)
    return ring


def check_sizes(slots: int, slot_bytes: int) -> int:
    """Slot size rounded up to whole cache lines."""
    if slots < 1 or slot_bytes < 1:
        raise UsageError(f"a ring of {slots} slots of {slot_bytes} bytes cannot carry anything")
    return -(-slot_bytes // SLOT_ALIGN) * SLOT_ALIGN
