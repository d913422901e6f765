"""Commits, their layout, and the race with whoever ends the ledger."""

import gc
import os
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_support import JOB, make_directory, open_ledger, start_child

from ftrt.errors import LedgerError, UsageError
from ftrt.ledger import layout, seal, state
from ftrt.ledger.log import CONSUMED, SENT, LedgerClosed
from ftrt.ledger.pool import LedgerPool


def numbers(seals) -> list[int]:
    """Every committed number in order, from the seals of one stream."""
    return [
        start + i
        for sealed in seals
        for _, runs in sealed.decoded
        for start, length, _ in runs
        for i in range(length)
    ]


def test_what_was_committed_is_sealed(pool):
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    log.append(5)
    log.append(6, 3)
    log.append(5)
    log.append(6, dropped=True)
    [sealed] = seal.close_rank(pool.directory, 1, 0)
    [(stream, runs)] = sealed.decoded
    assert runs.tolist() == [[5, 4, 0], [5, 1, 0], [6, 1, 1]]
    assert (stream["events"], stream["words"], stream["run"]) == (6, 3, 1) and log.events == 6


def test_closed_ledger_takes_nothing(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(SENT, "a", 0, 1)
    log.append(1)
    before = seal.close_rank(pool.directory, 1, 0)
    for attempt in (
        lambda: log.append(2),
        lambda: log.append(9),
        lambda: log.finish(1),
        lambda: log.append_seqs(np.arange(2, 9, dtype=np.uint64)),
        lambda: ledger.stream(SENT, "b", 0, 1),
    ):
        with pytest.raises(LedgerClosed):
            attempt()
    assert ledger.closed and log.events == 1
    after = seal.close_rank(pool.directory, 1, 0)
    assert [s["events"] for s in after[0]["streams"]] == [1] and before[0]["file"]
    assert seal.decode(pool.directory, dict(before[0]))[0][1].tolist() == [[1, 1, 0]]


def test_owner_can_close(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(CONSUMED, "a", 1, 0)
    log.append(1)
    ledger.close()
    with pytest.raises(LedgerClosed):
        log.append(2)


def test_a_ledger_that_was_left_goes_without_a_collection(pool):
    def open_files() -> int:
        return sum(".h5" in line for line in open("/proc/self/maps"))

    gc.collect()
    gc.disable()
    try:
        before = open_files()
        ledger = open_ledger(pool)
        log = ledger.stream(CONSUMED, "a", 1, 0)
        store = state.StateStore(pool.directory, 1, 0, ledger.published)
        store.put("x", 1, log.next_ref(1))
        log.append(1)
        ledger.close()
        ledger.leave()
        with pytest.raises(LedgerClosed):
            ledger.stream(CONSUMED, "a", 1, 0)
        del ledger, log, store
        assert open_files() == before
    finally:
        gc.enable()


def test_ledger_closed_before_it_is_opened(pool):
    assert seal.close_rank(pool.directory, 1, 3)[0]["streams"] == []
    with pytest.raises(LedgerClosed):
        open_ledger(pool, rank=3)


def test_second_owner_is_refused(pool):
    open_ledger(pool)
    with pytest.raises(LedgerError, match="another process"):
        open_ledger(pool)


def test_closer_sees_segments_made_after_it_mapped(tmp_path):
    pool = make_directory(tmp_path, pages=1)
    ledger = open_ledger(pool)
    closer = seal.RankCloser(tmp_path, 1, 0)
    ledger.stream(CONSUMED, "a", 1, 0).append_seqs(np.arange(0, 4000, 2, dtype=np.uint64))
    seals = closer.close()
    assert len(seals) == len(ledger.files) > 1
    assert numbers(seals) == list(range(0, 4000, 2))


def test_run_length_wraps_into_a_new_run(pool):
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    log.append(1, layout.MAX_RUN - 1)
    for seq in range(layout.MAX_RUN, layout.MAX_RUN + 3):
        log.append(seq)
    [sealed] = seal.close_rank(pool.directory, 1, 0)
    assert sealed.decoded[0][1].tolist() == [[1, layout.MAX_RUN, 0], [layout.MAX_RUN + 1, 2, 0]]


def test_hundred_million_in_order(pool):
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    for start in range(1, 100_000_001, 10_000_000):
        log.append_seqs(np.arange(start, start + 10_000_000, dtype=np.uint64))
    begin = time.perf_counter()
    [sealed] = seal.close_rank(pool.directory, 1, 0)
    runs = seal.decode(pool.directory, dict(sealed))[0][1]
    assert time.perf_counter() - begin < 1.0
    assert runs[:, 1].sum() == 100_000_000 and len(runs) == 24
    assert os.path.getsize(pool.directory / sealed["file"]) < 100_000


def test_numbers_far_apart_need_another_segment(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(CONSUMED, "a", 1, 0)
    far = [1, 1 << 40, 2, (1 << 40) + 1, 1 << 50]
    for seq in far:
        log.append(seq)
    log.append_seqs(np.array(far, np.uint64))
    seals = seal.close_rank(pool.directory, 1, 0)
    assert numbers(seals) == far + far and log.events == 10


def test_many_streams_share_segments(tmp_path):
    pool = make_directory(tmp_path, pages=8)
    ledger = open_ledger(pool)
    for source in range(600):
        ledger.stream(CONSUMED, "s", source, 0).append(source)
    seals = seal.close_rank(tmp_path, 1, 0)
    assert sorted(numbers(seals)) == list(range(600))
    assert ledger.stream(CONSUMED, "s", 5, 0) is ledger.stream(CONSUMED, "s", 5, 0)


def test_reference_is_reached_by_the_append(tmp_path):
    ledger = open_ledger(make_directory(tmp_path, pages=1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    for seq in range(0, 6600, 2):
        ref = log.next_ref(seq)
        assert not ledger.published(ref)
        log.append(seq)
        assert ledger.published(ref)
    assert log.next_ref(1)[2] == len(ledger.files) - 1 >= 2


def test_ledger_claimed_for_us_has_one_owner(pool):
    pool.claim(1, 0, 0, job=JOB, attempt=1, incarnation=0)
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    with pytest.raises(LedgerError, match="another process"):
        open_ledger(pool)
    log.append(1)


def test_mapping_and_committing_need_no_hdf5():
    code = (
        "import sys, ftrt.ledger.log, ftrt.ledger.seal, ftrt.ledger.state, ftrt.ledger.audit;"
        "sys.exit('h5py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_misuse_is_refused(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(CONSUMED, "a", 1, 0)
    for seq, count in ((-1, 1), (1, 0), (1, 1 << 24)):
        with pytest.raises(UsageError):
            log.append(seq, count)
    for bad in ("", "x" * 65, "a\0b"):
        with pytest.raises(UsageError):
            ledger.stream(CONSUMED, bad, 0, 0)
    for bad in ([1 << 60], [1, (1 << 64) - 1]):
        with pytest.raises(UsageError):
            ledger.stream(CONSUMED, f"b{bad}", 1, 0).append_seqs(np.array(bad, np.uint64))
    with pytest.raises(UsageError):
        log.finish(1)
    assert log.events == 0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 40), st.integers(1, 5), st.booleans()),
            st.lists(st.integers(0, 40), max_size=30),
        )
    )
)
def test_any_mix_of_commits_reads_back(tmp_path_factory, steps):
    pool = make_directory(tmp_path_factory.mktemp("mix"), pages=1)
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    expected = []
    for step in steps:
        if isinstance(step, tuple):
            log.append(*step)
            expected += range(step[0], step[0] + step[1])
        else:
            log.append_seqs(np.array(step, np.uint64))
            expected += step
    assert numbers(seal.close_rank(pool.directory, 1, 0)) == expected
    assert log.events == len(expected)


def test_blank_is_claimed_once(tmp_path):
    LedgerPool(tmp_path, 1).ensure(4)

    for rank in (0, 1, 2):
        start_child(
            lambda rank=rank: [
                LedgerPool(tmp_path, 1).claim(
                    1, rank, segment, job="0" * 32, attempt=0, incarnation=0
                )
                for segment in range(8)
            ]
        )
    assert [os.wait()[1] for _ in range(3)] == [0, 0, 0]
    assert len({path.stat().st_ino for path in tmp_path.glob("e*.h5")}) == 24
    assert not list(tmp_path.glob("claim-*")) and not list(tmp_path.glob("tmp-*"))


@pytest.mark.parametrize("batch", [1, 7])
def test_closer_and_committer_agree(tmp_path, batch):
    """The count that the process saw committed is the count that was sealed, in every round."""
    pool = make_directory(tmp_path, pages=1)
    pool.ensure(60)
    for rank in range(60):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _commit_until_closed(pool, rank, batch, writer)
        os.close(writer)
        os.read(reader, 1)
        time.sleep(0.0003 * (rank % 7))
        seals = seal.RankCloser(tmp_path, 1, rank).close()
        seen = struct.unpack("q", os.read(reader, 8))[0]
        os.close(reader)
        assert os.waitpid(child, 0)[1] == 0
        assert sum(s["events"] for q in seals for s in q["streams"]) == seen


def _commit_until_closed(pool, rank, batch, writer):
    log = open_ledger(pool, rank=rank).stream(CONSUMED, "a", 1, 0)
    os.write(writer, b"r")
    seen, seq = 0, 1
    try:
        while True:
            if batch == 1:
                log.append(seq)
            else:
                log.append_seqs(np.arange(seq, seq + batch, dtype=np.uint64))
            seen, seq = seen + batch, seq + batch + (seen % 3 == 0)
    except LedgerClosed as error:
        os.write(writer, struct.pack("q", seen + error.applied))
        os._exit(0)
    finally:
        os._exit(1)
