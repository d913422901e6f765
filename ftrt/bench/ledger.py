"""What a commit costs beside a plain store of the same bytes into a mapped file, and its space.

For space and loading, raw is an array with one 8-byte number for each message.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
import uuid

import numpy as np

from ftrt.errors import InvariantBroken
from ftrt.ledger.log import CONSUMED, Ledger
from ftrt.ledger.pool import LedgerPool
from ftrt.ledger.seal import RankCloser, consumed_so_far

_LOOP = 20_000
_BATCH = 1_000_000
#: Messages whose space and loading are measured.
_IN_ORDER, _WORST = 100_000_000, 10_000_000
#: Places that are as far apart as this share no word: each message takes a whole one.
_FAR = 1 << 30


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
        found = [
            _row(what, size, unit, raw, ours, seconds_budget / len(kinds))
            for what, size, unit, raw, ours in kinds
        ]
        orders = [
            ("in order", _IN_ORDER, 0),
            ("worst order", _WORST, _WORST // 2),
            ("far order", _WORST, _FAR),
        ]
        return found + [row for order in orders for row in bench.space(*order)]


def _row(what, size, unit, raw, ours, seconds) -> dict:
    raw(), ours()
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    while time.perf_counter() < end or len(pairs) < 5:
        pairs.append((raw(), ours()))
    plain, full = np.array(pairs).T
    low, middle, high = np.percentile(plain, [25, 50, 75])
    spread = float((high - low) / 2 / middle)
    return _entry(what, size, unit, float(middle), float(np.median(full)), spread)


def _entry(what, size, unit, raw: float, ours: float, spread: float) -> dict:
    return {
        "what": what,
        "size": size,
        "unit": unit,
        "raw": raw,
        "ftrt": ours,
        "ratio": ours / raw,
        "spread": spread,
    }


class _Bench:
    """The two sides; every method runs one round and returns its time per message."""

    def __init__(self, directory):
        self._directory = directory
        self._pool, self._epoch = LedgerPool(directory), 0
        self._map = mmap.mmap(-1, 1 << 20)
        self._target = np.frombuffer(self._map, np.uint64)
        self._seqs = np.arange(1, _BATCH + 1, dtype=np.uint64)

    def _stream(self, count: int = 1, warm: bool = True):
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
            if warm:
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

    def space(self, order: str, count: int, apart: int) -> list[dict]:
        """Bytes that ``count`` messages take on the disk, and how long reading them takes.

        They come in order, or from two places in turn that are ``apart``: then no number follows
        the one before it.
        """
        log = self._stream(warm=False)
        for first in range(1, count + 1, _BATCH):
            seqs = self._seqs + np.uint64(first - 1)
            if apart:
                low = self._seqs[: _BATCH // 2] + np.uint64(first // 2)
                seqs = np.stack([low, low + np.uint64(apart)], 1).ravel()
            log.append_seqs(seqs)
        files = [path.stat() for path in self._pool.directory.glob("e*.h5")]
        size = sum(file.st_blocks * 512 for file in files) / count
        plain = np.arange(count)
        self._load(count, plain)
        pairs = np.array([self._load(count, plain) for _ in range(3)])
        raw, ours = np.median(pairs, axis=0)
        spread = float(np.ptp(pairs[:, 0]) / 2 / raw)
        self._discard()
        return [
            _entry(f"space {order}", count, "bytes/message", 8.0, size, 0.0),
            _entry(f"load {order}", count, "s", float(raw), float(ours), spread),
        ]

    def _load(self, count: int, plain: np.ndarray) -> tuple[float, float]:
        start = time.perf_counter()
        total = int(plain.max()) + 1
        middle = time.perf_counter()
        runs = consumed_so_far(self._directory, self._epoch, 0)["bench", 0, 0]
        loaded = int(runs[:, 1].sum())
        taken = time.perf_counter() - middle
        if loaded != count or total != count:
            raise InvariantBroken(f"{loaded} of {count} messages were read back")
        return middle - start, taken

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
