"""The job of ``ftrt bench stream --plane nccl``: raw NCCL and ftrt in turn, between two GPUs.

Raw is what a program without ftrt would do in its best way: windows of grouped sends and receives
from fixed buffers, or the same captured as a CUDA graph and replayed; nothing is checked, kept or
recorded. Both go through the same library; each has a communicator of its own.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import ftrt
from ftrt.transport.nccl.groups import words

#: (bytes of a message, path, messages of a window, whether small messages share a slot)
CASES = [
    (16, "graph", 16, False),
    (16, "graph", 32, False),
    (16, "eager", 32, False),
    (16, "eager", 4096, True),
    (65536, "graph", 16, False),
    (65536, "graph", 32, False),
    (65536, "eager", 32, False),
    (1 << 20, "graph", 16, False),
    (1 << 20, "eager", 16, False),
]
_SAMPLES, _SAMPLE_S, _WARM = 15, 0.04, 6
_RAW_WINDOWS = 2  # in flight


class Raw:
    """Plain NCCL between the two ranks."""

    def __init__(self, rt, size: int, window: int, graph: bool) -> None:
        plane = rt.job.plane
        self._device, self._rank = plane.device, rt.rank
        if rt.rank == 0:
            self.pair = plane.pairs.offer(rt.job.processes[1])
            rt.comm.bcast(self.pair.name)
            self.pair.taken = True
        else:
            name = rt.comm.bcast(None)
            while (found := plane.pairs.find(name)) is None:
                time.sleep(0.001)
            self.pair = found
        while not self.pair.connected:
            if self.pair.failure:
                raise RuntimeError(self.pair.failure)
            time.sleep(0.001)
        stride = max(64, size)
        self.window = min(window, 32)
        self._memory = [self._device.memory(stride * self.window) for _ in range(_RAW_WINDOWS)]
        self._lists = [
            words(memory.address + stride * np.arange(self.window)) for memory in self._memory
        ]
        self._sizes = words(np.full(self.window, size))
        self._stream = self._device.stream()
        self._graphs: list = []
        if graph:
            for i in range(_RAW_WINDOWS):
                self._graphs.append(self._device.capture(self._stream, lambda i=i: self._post(i)))

    def _post(self, i: int) -> None:
        comm = self.pair.comm
        move = comm.send if self._rank == 0 else comm.receive
        move(self.pair.other, self._lists[i], self._sizes, self._stream.handle)

    def run(self, messages: int) -> None:
        """Move so many messages, ``_RAW_WINDOWS`` windows in flight."""
        marks: list = [None] * _RAW_WINDOWS
        for number in range(messages // self.window):
            i = number % _RAW_WINDOWS
            if self._graphs:
                self._graphs[i].launch(self._stream)
            else:
                self._post(i)
            marks[i] = self._device.mark(self._stream)
            oldest = marks[(i + 1) % _RAW_WINDOWS]
            while oldest is not None and not oldest.done():
                pass
        while not self._device.idle(self._stream):
            pass

    def end(self, rt) -> None:
        """End it on both sides at once."""
        for graph in self._graphs:
            graph.destroy()
        rt.comm.Barrier()
        rt.job.plane.pairs.retire(self.pair)


class Ours:
    """A stream of ftrt."""

    def __init__(self, rt, name: str, size: int, batch: int, packed: bool) -> None:
        self._rank, self._batch = rt.rank, batch
        slot = size * batch if packed else size
        window = 64 if packed else max(64, min(256, 4 * batch))
        rows = np.arange(batch * size, dtype=np.uint8).reshape(batch, size)
        self._rows = rt.to_plane(rows)
        if rt.rank == 0:
            self._end = rt.sender(
                name,
                to=1,
                replay=lambda seq: self._rows[(seq - 1) % batch],
                slot_bytes=max(64, slot),
                window=window,
            )
        else:
            self._end = rt.receiver(name, source=0)

    def run(self, messages: int) -> None:
        """Send, or consume, so many messages."""
        left = messages
        if self._rank == 0:
            while left > 0:
                self._end.send_batch(self._rows)
                left -= self._batch
            return
        while left > 0:
            message = self._end.receive_batch()
            left -= message.count
            with message.consume():
                pass

    def end(self) -> None:
        """Close the stream."""
        if self._rank == 0:
            self._end.close()
        elif self._end.receive_batch() is not None:
            raise RuntimeError("more came than was sent")


def _timed(rt, work, messages: int) -> float:
    rt.comm.Barrier()
    start = time.perf_counter()
    work(messages)
    rt.comm.Barrier()
    return (time.perf_counter() - start) / messages * 1e6


def _case(rt, size: int, path: str, batch: int, packed: bool) -> dict:
    plane = rt.job.plane
    plane.path, plane.packs = path, packed
    raw = Raw(rt, size, batch, path == "graph")
    ours = Ours(rt, f"{path}-{size}-{batch}", size, batch, packed)
    base = max(batch, 32)
    sent = 0
    for _ in range(_WARM):
        ours.run(8 * base)
        raw.run(8 * base)
        sent += 8 * base
    guess = rt.comm.bcast(_timed(rt, raw.run, 32 * base))
    messages = max(8, int(_SAMPLE_S * 1e6 / guess / base)) * base
    pairs = []
    for _ in range(_SAMPLES):
        pairs.append((_timed(rt, raw.run, messages), _timed(rt, ours.run, messages)))
        sent += messages
    ours.end()
    raw.end(rt)
    used = ours._end._lanes[0].ring.counters if rt.rank == 0 else ours._end._ring.counters
    raws, mine = [p[0] for p in pairs], [p[1] for p in pairs]
    ratios = sorted(r / m for r, m in pairs)
    return {
        "size": size,
        "path": path,
        "batch": batch,
        "packed": packed,
        "messages": sent,
        "raw_us": statistics.median(raws),
        "ftrt_us": statistics.median(mine),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 10],
        "ratio_high": ratios[-1 - len(ratios) // 10],
        "raw_spread": (max(raws) - min(raws)) / statistics.median(raws),
        "counters": dict(used),
    }


def main(result: Path, only: list[str]) -> None:
    """Go through the cases and write what rank 0 saw."""
    with ftrt.init() as rt:
        found = []
        for case in CASES:
            if only and f"{case[1]}-{case[0]}" not in only:
                continue
            found.append(_case(rt, *case))
            if rt.rank == 0:
                print(json.dumps(found[-1]), flush=True)
        if rt.rank == 0:
            result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
