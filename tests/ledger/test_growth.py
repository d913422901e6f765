"""Segments that grow: their sizes, what they cost, a death at each step, a disk that is full."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
from ledger_support import DieAt, killed, make_directory, mounted, open_ledger, run_child

from ftrt.errors import LedgerError
from ftrt.ledger import audit, layout, seal, steps
from ftrt.ledger.log import CONSUMED
from ftrt.ledger.pool import LedgerPool

FAR = 1 << 30


def numbers(directory) -> list[int]:
    seals = seal.close_rank(directory, 1, 0)
    runs = [row for sealed in seals for _, rows in sealed.decoded for row in rows]
    return [start + i for start, length, _ in runs for i in range(length)]


def far(first: int, count: int) -> np.ndarray:
    """Numbers of which each takes a word."""
    return (np.arange(first, first + count) + np.tile([0, FAR], count)[:count]).astype(np.uint64)


def sizes(directory) -> list[int]:
    found = []
    for path in sorted(directory.glob("e000001-r0000-s*.h5")):
        with h5py.File(path) as file:
            found.append(file["words"].size // layout.PAGE_WORDS)
            assert file["pages"].size == found[-1]
    return found


def test_segments_grow_and_hold_every_event(tmp_path):
    ledger = open_ledger(make_directory(tmp_path, pages=1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    order = far(1, 40_000)
    log.append_seqs(order[:15_000])
    for seq in order[15_000:16_000].tolist():
        log.append(seq)
    log.append_seqs(order[16_000:])
    made = sizes(tmp_path)
    assert made[:9] == [1, 1, 1, 1, 2, 2, 2, 2, 3] and made == sorted(made)
    assert sum(made) * layout.PAGE_WORDS < 1.05 * 40_000 + made[-1] * layout.PAGE_WORDS
    assert numbers(tmp_path) == order.tolist()
    assert audit.audit(tmp_path)["consumed"] == 40_000


@pytest.mark.parametrize("count, most_bytes", [(500_000, 6.0), (3_000_000, 5.0)])
def test_the_worst_order_costs_less_than_eight_bytes_a_message(tmp_path, count, most_bytes):
    """Neither that of two places in turn nor a random one has numbers that follow each other."""
    turns = np.stack([np.arange(count // 2), np.arange(count // 2, count)], 1).ravel()
    pool = make_directory(tmp_path, pages=64)
    for rank, order in enumerate((turns, np.random.default_rng(1).permutation(count))):
        log = open_ledger(pool, rank=rank).stream(CONSUMED, "a", 1, 0)
        for batch in np.split(order.astype(np.uint64), 10):
            log.append_seqs(batch)
        files = [path.stat() for path in tmp_path.glob(f"e000001-r{rank:04d}-s*.h5")]
        assert sum(file.st_blocks * 512 for file in files) < most_bytes * count


def test_a_segment_grows_no_further_than_sixteenfold():
    pool = LedgerPool(".", pages=64)
    assert [pool.pages_of(number) for number in (0, 3, 4, 59, 60, 64, 999)] == [
        *(64, 64, 128, 64 * 15, 64 * 16, 64 * 16, 64 * 16)
    ]


def test_small_batches_are_committed_whole_where_segments_grow(tmp_path):
    log = open_ledger(make_directory(tmp_path, pages=1)).stream(CONSUMED, "a", 1, 0)
    order = far(1, 20_000).reshape(-1, 400)
    for batch in order:
        log.append_seqs(batch)
    ends = np.cumsum(
        [
            len(np.concatenate([r for _, r in sealed.decoded]))
            for sealed in seal.close_rank(tmp_path, 1, 0)
        ]
    )
    assert not (ends % 400).any() and ends[-1] == 20_000
    assert numbers(tmp_path) == order.ravel().tolist()


def grow(directory, die_at: int, seen: int, told) -> None:
    """From the end of the fourth segment into the fifth and, by a batch, the sixth."""
    log = open_ledger(LedgerPool(directory, 1)).stream(CONSUMED, "a", 1, 0)
    fill(log, 4 * 512)
    steps.install(DieAt(die_at, told))
    for seq in far(2049, 3).tolist():
        log.append(seq)
        os.write(seen, log.events.to_bytes(8, "little"))
    log.append_seqs(far(2052, 1500))
    os.write(seen, log.events.to_bytes(8, "little"))


def fill(log, count: int) -> None:
    for seq in far(1, count).tolist():
        log.append(seq)


def test_killed_at_every_step_of_growth(tmp_path):
    told, number, status = tmp_path / "told", 0, 9
    made = set()
    while killed(status):
        number += 1
        directory = tmp_path / str(number)
        directory.mkdir()
        make_directory(directory)
        reader, writer = os.pipe()
        status = run_child(lambda at=number, to=directory, w=writer: grow(to, at, w, told))
        os.close(writer)
        with open(reader, "rb") as file:
            upto = max(np.frombuffer(file.read(), np.uint64).tolist(), default=2048)
        made.add(len(sizes(directory)))  # every file of them can be opened
        assert audit.audit(directory)["consumed"] == len(found := numbers(directory))
        order = np.concatenate([far(1, 2048), far(2049, 3), far(2052, 1500)]).tolist()
        assert found == order[: len(found)]
        assert len(found) in (upto, upto + 1) or (upto == 2051 and len(found) <= 3551)
    assert made == {4, 5, 6} and len(found) == 3551
    passed = set(told.read_text().split())
    assert passed >= {"file.probed", "file.written", "file.named", "blank.taken", "blank.filled"}
    assert passed >= {"blank.linked", "segment.claimed", "segment.counted", "page.owned"}


@pytest.mark.parametrize("batch", [False, True])
def test_a_full_disk_at_growth_is_told_before_a_commit(tmp_path, batch):
    with mounted(tmp_path, "size=4m"):
        log = open_ledger(make_directory(tmp_path, pages=16)).stream(CONSUMED, "a", 1, 0)
        fill(log, 4 * 16 * 512)
        with open(tmp_path / "filler", "wb") as file:
            left = os.statvfs(tmp_path)
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_bsize - 120_000)
        before, events = set(os.listdir(tmp_path)), log.events
        # There is room for a segment of the first size, none for one that has grown.
        with pytest.raises(LedgerError, match="no space left for it; free some"):
            log.append_seqs(far(32769, 10)) if batch else log.append(32769)
        assert log.events == events == audit.audit(tmp_path)["consumed"]
        assert set(os.listdir(tmp_path)) == before
        os.unlink(tmp_path / "filler")
        log.append_seqs(far(32769, 10)) if batch else log.append(32769)
        assert audit.audit(tmp_path)["consumed"] == log.events > events
        assert sizes(tmp_path) == [16, 16, 16, 16, 32]
