"""The ranks of the stream benchmark: raw MPI, the ring and the public API, in one process pair."""

from __future__ import annotations

import json
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ftrt
from ftrt.transport.ring import RecvRing, SendRing

#: Bytes of a message, messages of a batch, frames of one measurement.
CASES = ((16, 1, 20_000), (16, 4096, 500), (1 << 16, 1, 2_000), (1 << 20, 1, 120))
RAW_WINDOWS = (2, 4, 8, 16, 32, 64)
SLOTS = (4, 8, 16)
_REPEATS = 7
_LEDGER_MESSAGES = 2_000


class Raw:
    """Windowed mpi4py with buffers that are made, touched and registered beforehand."""

    def __init__(self, comm, size: int, style: str, window: int):
        from mpi4py import MPI

        self._mpi, self.comm, self.style, self.window = MPI, comm, style, window
        self.buffers, self._news = _filled(window, size), _filled(window, size)
        start = comm.Send_init if comm.rank == 0 else comm.Recv_init
        self._requests = [start([b, MPI.BYTE], 1 - comm.rank, 7) for b in self.buffers]

    @property
    def name(self) -> str:
        """What the row says of it."""
        return f"{self.style}, window {self.window}"

    def run(self, frames: int, reads: bool = False, writes: bool = False) -> None:
        """Move ``frames`` messages.

        With ``reads`` the receiver adds up their words; with ``writes`` the sender fills each
        buffer from another array before it sends it, as for a message that says something new.
        """
        reads, writes = reads and self.comm.rank == 1, writes and self.comm.rank == 0
        move = self._one_by_one if self.style != "persistent groups" else self._groups
        move(frames, reads, writes)

    def _one_by_one(self, frames: int, reads: bool, writes: bool) -> None:
        buffers, window = self.buffers, self.window
        plain = self.comm.Isend if self.comm.rank == 0 else self.comm.Irecv
        persistent = self.style == "persistent"
        requests = self._requests[:]

        def start(slot):
            if writes:
                np.copyto(buffers[slot], self._news[slot])
            if persistent:
                requests[slot].Start()
            else:
                requests[slot] = plain(buffers[slot], 1 - self.comm.rank, 8)

        for slot in range(min(window, frames)):
            start(slot)
        for i in range(frames):
            slot = i % window
            requests[slot].Wait()
            if reads:
                buffers[slot].view(np.uint64).sum()
            if i + window < frames:
                start(slot)

    def _groups(self, frames: int, reads: bool, writes: bool) -> None:
        half = max(1, self.window // 2)
        groups = [self._requests[:half], self._requests[half : 2 * half]]

        def start(turn):
            if writes:
                for slot in range(turn % 2 * half, turn % 2 * half + half):
                    np.copyto(self.buffers[slot], self._news[slot])
            self._mpi.Prequest.Startall(groups[turn % 2])

        start(0)
        start(1)
        rounds = max(2, -(-frames // half))
        for turn in range(rounds):
            group = groups[turn % 2]
            self._mpi.Request.Waitall(group)
            if reads:
                for slot in range(half):
                    self.buffers[turn % 2 * half + slot].view(np.uint64).sum()
            if turn + 2 < rounds:
                start(turn)

    def frames_moved(self, frames: int) -> int:
        """How many frames a run of ``frames`` moves: whole groups only."""
        half = max(1, self.window // 2)
        whole = max(2, -(-frames // half)) * half
        return whole if self.style == "persistent groups" else frames


class Ring:
    """The ring itself: every message checked at both ends, kept until it is given back."""

    def __init__(self, comm, size: int, batch: int, slots: int, sources):
        self.comm, self.batch, self.slots, self._sent = comm, batch, slots, 0
        path = Path("/dev/shm") / f"ftrt-bench-{comm.bcast(os.getpid())}-{size}-{batch}-{slots}"
        if comm.rank == 0:
            self._end = SendRing.create(
                path,
                slots=slots,
                slot_bytes=size * batch,
                job="bench",
                stream_id=1,
                source=0,
                dest=1,
            )
        comm.Barrier()
        if comm.rank == 1:
            self._reader = RecvRing.attach(path)
        comm.Barrier()
        if comm.rank == 0:
            path.unlink()
        self._sources = sources

    def run(self, frames: int) -> None:
        """Move ``frames`` frames."""
        if self.comm.rank == 1:
            poll, release = self._reader.poll, self._reader.release
            next_plain, sent = self._reader.poll_plain, self._sent
            self._sent += frames
            for seq in range(sent + 1, sent + frames + 1) if self.batch == 1 else ():
                while next_plain(seq) is None and poll() is None:
                    os.sched_yield()
                release(seq)  # one message a frame: they have the same numbers
            for _ in range(frames) if self.batch > 1 else ():
                while (frame := poll()) is None:
                    os.sched_yield()
                release(frame.number)
            return
        send = self._end.try_send_batch if self.batch > 1 else self._end.try_send
        sources, batch = self._sources, self.batch
        for i in range(self._sent, self._sent + frames):
            while not send(1 + i * batch, sources[i % len(sources)], 1):
                os.sched_yield()
        self._sent += frames


class Public:
    """``Sender.send`` or ``send_batch`` against ``consume()``, ledgers and all."""

    def __init__(self, rt, size: int, batch: int, slots: int, sources):
        self.batch, self.slots, self._sources = batch, slots, sources
        name = f"bench-{size}-{batch}-{slots}"
        if rt.rank == 0:
            self._out = rt.sender(
                name, to=1, replay=self._again, slot_bytes=max(64, size * batch), window=slots
            )
        else:
            self._in = rt.receiver(name, source=0)
        self._rank = rt.rank

    def _again(self, seq: int) -> np.ndarray:
        frame, row = divmod(seq - 1, self.batch)
        source = self._sources[frame % len(self._sources)]
        return source[row] if self.batch > 1 else source

    def run(self, frames: int) -> None:
        """Move and consume ``frames`` frames."""
        if self._rank == 1:
            receive = self._in.receive_batch if self.batch > 1 else self._in.receive
            for _ in range(frames):
                with receive().consume():
                    pass
            return
        sources = self._sources
        first = (self._out.next_seq - 1) // self.batch
        send = self._out.send_batch if self.batch > 1 else self._out.send
        for i in range(first, first + frames):
            send(sources[i % len(sources)])

    def close(self) -> None:
        """End the stream."""
        if self._rank == 0:
            self._out.close()
        elif self._in.receive() is not None:
            raise RuntimeError("the benchmark left a message behind")


def _filled(count: int, *shape: int) -> list[np.ndarray]:
    """Arrays whose pages are there: a page that was never written is a page of zeros for all."""
    noise = np.random.default_rng(1)
    return [noise.integers(0, 255, shape, dtype=np.uint8) for _ in range(count)]


def _timed(comm, work: Callable, *arguments) -> float:
    comm.Barrier()
    start = time.perf_counter()
    work(*arguments)
    comm.Barrier()
    return time.perf_counter() - start


def _best(comm, candidates: list, frames: int):
    """The candidate that is fastest in three short runs; both ranks choose alike."""
    times = [min(_timed(comm, c.run, frames) for _ in range(3)) for c in candidates]
    return candidates[comm.bcast(times.index(min(times)))]


def case(rt, size: int, batch: int, frames: int) -> dict:
    """Microseconds a frame of every kind, ``_REPEATS`` alternating measurements each."""
    comm, bytes_ = rt.comm, size * batch
    short = max(8, frames // 8)
    styles = ("plain", "persistent", "persistent groups")
    raw = _best(comm, [Raw(comm, bytes_, s, w) for s in styles for w in RAW_WINDOWS], short)
    sources = [b.reshape(batch, size) if batch > 1 else b for b in raw.buffers]
    ring = _best(comm, [Ring(comm, size, batch, n, sources) for n in SLOTS], short)
    publics = [Public(rt, size, batch, n, sources) for n in SLOTS]
    public = _best(comm, publics, short)
    times: dict[str, list[float]] = {"bare": [], "reading": [], "new": [], "ring": [], "public": []}
    moved = raw.frames_moved(frames)
    for _ in range(_REPEATS):
        times["bare"].append(_timed(comm, raw.run, frames) / moved)
        times["reading"].append(_timed(comm, raw.run, frames, True) / moved)
        times["new"].append(_timed(comm, raw.run, frames, True, True) / moved)
        times["ring"].append(_timed(comm, ring.run, frames) / frames)
        times["public"].append(_timed(comm, public.run, frames) / frames)
    for end in publics:
        end.close()
    found = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    return {
        "size": size,
        "batch": batch,
        "us": found,
        "raw": raw.name,
        "ring": f"{ring.slots} slots",
        "public": f"{public.slots} slots",
    }


def commits(rt) -> dict:
    """Nanoseconds that ``with message.consume(): pass`` takes, alone and in a batch."""
    payload = np.zeros((_LEDGER_MESSAGES, 16), np.uint8)
    rows = np.zeros((64, 4096, 16), np.uint8)
    if rt.rank == 0:
        with rt.sender("commit", to=1, volatile=True, slot_bytes=64, window=4096) as out:
            for row in payload:
                out.send(row)
        with rt.sender("commit-batch", to=1, volatile=True) as out:
            for part in rows:
                out.send_batch(part)
        return {}
    receiver = rt.receiver("commit", source=0)
    messages = [receiver.receive() for _ in range(_LEDGER_MESSAGES)]
    alone = _consume_all(messages) / len(messages)
    batches, found = rt.receiver("commit-batch", source=0), []
    for batch in batches.batches():
        count = batch.count
        found.append(_consume_all([batch]) / count)
    target, rounds = bytearray(4096), 20_000
    start = time.perf_counter_ns()
    for seq in range(rounds):
        struct.pack_into("<Q", target, 512, seq)
    raw = (time.perf_counter_ns() - start) / rounds
    if receiver.receive() is not None:
        raise RuntimeError("the benchmark left a message behind")
    return {"alone": alone, "batch": statistics.median(found), "raw": raw}


def _consume_all(messages: list) -> float:
    start = time.perf_counter_ns()
    for message in messages:
        with message.consume():
            pass
    return time.perf_counter_ns() - start


def main(result: str) -> None:
    """Measure everything; rank 1, which consumes, writes the result."""
    with ftrt.init() as rt:
        processors = sorted(os.sched_getaffinity(0))
        # Ranks that yield to each other on one processor would measure the scheduler.
        os.sched_setaffinity(0, {processors[rt.rank % len(processors)]})
        found = {"cases": [case(rt, *c) for c in CASES], "commits": commits(rt)}
        if rt.rank == 1:
            Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
