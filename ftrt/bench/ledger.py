"""What a commit costs beside a plain store of the same bytes into a mapped file."""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
import uuid

import numpy as np

from ftrt.ledger.log import CONSUMED, Ledger
from ftrt.ledger.pool import LedgerPool
from ftrt.ledger.seal import RankCloser

_LOOP = 20_000
_BATCH = 1_000_000


def rows(seconds_budget: float = 5.0) -> list[dict]:
    """Measure raw and ours alternately until the time is used up.

    Returns
    -------
    list of dict
        ``{what, size, unit, raw, ftrt, ratio, spread}``: medians in ``unit``; ``spread`` is half
        the distance between the quartiles of raw over its median.
    """
    with tempfile.TemporaryDirectory() as directory:
        bench = _Bench(directory)
        kinds = [
            ("commit in order", 1, "ns/message", bench.raw_store, bench.in_order),
            ("commit out of order", 1, "ns/message", bench.raw_store, bench.out_of_order),
            ("batch in order", _BATCH, "ns/message", bench.raw_batch, bench.batch_in_order),
            ("end a rank's ledger", 4, "us", bench.raw_close, bench.close),
        ]
        return [
            _row(what, size, unit, raw, ours, seconds_budget / len(kinds))
            for what, size, unit, raw, ours in kinds
        ]


def _row(what, size, unit, raw, ours, seconds) -> dict:
    raw(), ours()
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    while time.perf_counter() < end or len(pairs) < 5:
        pairs.append((raw(), ours()))
    plain, full = np.array(pairs).T
    low, middle, high = np.percentile(plain, [25, 50, 75])
    found = float(np.median(full))
    return {
        "what": what,
        "size": size,
        "unit": unit,
        "raw": float(middle),
        "ftrt": found,
        "ratio": found / float(middle),
        "spread": float((high - low) / 2 / middle),
    }


class _Bench:
    """The two sides; every method runs one round and returns its time per message."""

    def __init__(self, directory):
        self._directory = directory
        self._pool, self._epoch = LedgerPool(directory, pages=64), 0
        self._map = mmap.mmap(-1, 1 << 20)
        self._target = np.frombuffer(self._map, np.uint64)
        self._seqs = np.arange(1, _BATCH + 1, dtype=np.uint64)

    def _stream(self, count: int = 1):
        self._epoch += 1
        ledger = Ledger.open(
            self._pool,
            job=str(uuid.UUID(int=1)),
            attempt=1,
            epoch=self._epoch,
            rank=0,
            incarnation=1,
        )
        for source in range(count):
            log = ledger.stream(CONSUMED, "bench", source, 0)
            log.append(1_000_000_000)
        return log

    def _discard(self) -> None:
        for path in self._pool.directory.glob("e*.h5"):
            path.unlink()

    def raw_store(self) -> float:
        target, pack = self._map, struct.pack_into
        start = time.perf_counter_ns()
        for seq in range(_LOOP):
            pack("<Q", target, 512, seq)
        return (time.perf_counter_ns() - start) / _LOOP

    def in_order(self) -> float:
        return self._appends(range(1, _LOOP + 1))

    def out_of_order(self) -> float:
        return self._appends(range(2 * _LOOP, 0, -2))

    def _appends(self, order) -> float:
        append = self._stream().append
        start = time.perf_counter_ns()
        for seq in order:
            append(seq)
        taken = (time.perf_counter_ns() - start) / _LOOP
        self._discard()
        return taken

    def raw_batch(self) -> float:
        start = time.perf_counter_ns()
        for at in range(0, _BATCH, self._target.size):
            part = self._seqs[at : at + self._target.size]
            self._target[: part.size] = part
        return (time.perf_counter_ns() - start) / _BATCH

    def batch_in_order(self) -> float:
        log = self._stream()
        start = time.perf_counter_ns()
        log.append_seqs(self._seqs)
        taken = (time.perf_counter_ns() - start) / _BATCH
        self._discard()
        return taken

    def raw_close(self) -> float:
        start = time.perf_counter_ns()
        for _ in range(4):
            struct.pack_into("<Q", self._map, 512, 1 << 63)
        return (time.perf_counter_ns() - start) / 1000

    def close(self) -> float:
        self._stream(4)
        closer = RankCloser(self._directory, self._epoch, 0)
        start = time.perf_counter_ns()
        closer.close()
        taken = (time.perf_counter_ns() - start) / 1000
        self._discard()
        return taken


if __name__ == "__main__":
    for row in rows():
        print(row)
