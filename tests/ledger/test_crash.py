"""Processes that die at every step, and what is left of their ledgers."""

import os
import signal
import time

import h5py
import numpy as np
import pytest
from kill_points import AT_THE_END_OF_AN_EPOCH, open_commit
from ledger_support import (
    JOB,
    DieAt,
    killed,
    make_directory,
    open_ledger,
    run_child,
    start_child,
)

from ftrt.ledger import audit, record, seal, state, steps
from ftrt.ledger.log import CONSUMED, SENT, LedgerClosed
from ftrt.ledger.pool import LedgerPool


def committed(directory) -> list[int]:
    return [
        start + i
        for sealed in seal.close_rank(directory, 1, 0)
        for stream, runs in sealed.decoded
        if stream["kind"] == CONSUMED
        for start, length, _ in runs
        for i in range(length)
    ]


def commit_a_lot(directory, die_at: int, seen: int) -> None:
    """Every slow path there is: registration, pages, segments, a close; reports each commit."""
    steps.install(DieAt(die_at))
    ledger = open_ledger(LedgerPool(directory, 1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    for seq in range(0, 3600, 2):  # three of them in a word
        log.append(seq)
        os.write(seen, seq.to_bytes(8, "little"))
    ledger.stream(SENT, "b", 0, 1).finish(0)


@pytest.mark.parametrize("die_at", range(1, 23))
def test_killed_at_every_step_of_the_slow_path(tmp_path, die_at):
    make_directory(tmp_path)
    reader, writer = os.pipe()
    status = run_child(lambda: commit_a_lot(tmp_path, die_at, writer))
    os.close(writer)
    with open(reader, "rb") as file:
        told = np.frombuffer(file.read(), np.uint64).tolist()
    assert killed(status) or (status == 0 and die_at > 18)
    assert committed(tmp_path) in (told, told + [len(told) * 2])
    for path in tmp_path.glob("*.h5"):
        with h5py.File(path) as file:
            assert file["words"].shape == (512,)


def test_killed_while_committing_fast(tmp_path):
    pool = make_directory(tmp_path, pages=8)
    pool.ensure(8)
    for delay_ms in range(8):
        rank, (reader, writer) = delay_ms, os.pipe()
        child = start_child(lambda rank=rank, writer=writer: _commit_for_ever(pool, rank, writer))
        os.close(writer)
        os.read(reader, 1)
        time.sleep(delay_ms / 1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(reader, "rb") as file:
            told = file.read()
        told = int.from_bytes(told[len(told) // 8 * 8 - 8 :][:8], "little") if len(told) > 7 else 0
        [consumed] = seal.marks_of(
            [pair for sealed in seal.close_rank(tmp_path, 1, rank) for pair in sealed.decoded]
        ).values()
        assert told <= consumed[:, 1].sum() <= told + 1


def _commit_for_ever(pool, rank, writer):
    log = open_ledger(pool, rank=rank).stream(CONSUMED, "a", 1, 0)
    os.write(writer, b"r")
    for count in range(1, 10_000_000):
        log.append(count)
        os.write(writer, count.to_bytes(8, "little"))


def test_plain_h5py_reads_it_while_mapped_and_after_sigkill(tmp_path):
    pool = make_directory(tmp_path)

    def work():
        open_ledger(pool, rank=1).stream(CONSUMED, "a", 1, 0).append(9, 4)
        os.kill(os.getpid(), signal.SIGKILL)

    assert killed(run_child(work))
    open_ledger(pool).stream(CONSUMED, "a", 1, 0).append(9, 4)
    for rank in (0, 1):
        with h5py.File(tmp_path / f"e000001-r{rank:04d}-s000.h5") as file:
            assert file["header"]["rank"][0] == rank and file["header"]["magic"][0] == b"FTRTLDGR"
            assert file["streams"]["name"][0] == b"a"
            assert file["streams"]["head"][0] & (1 << 56) - 1 == 1 << 24 | 4
            assert file["words"][0] & 0xFFFFFFFF == 9


def test_a_segment_that_comes_after_the_end_counts_for_nothing(tmp_path):
    pool = make_directory(tmp_path, pages=1)
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    log.append(1)
    closer, seals = seal.RankCloser(tmp_path, 1, 0), []

    def close_between(name: str) -> None:
        # The new segment has its name, and segment 0 does not count it yet.
        if name == "segment.claimed":
            assert closer.map() == 2
            seals.extend(closer.close())

    steps.install(close_between)
    try:
        with pytest.raises(LedgerClosed):
            log.append(1 << 40)  # too far away for the segment
    finally:
        steps.install(None)
    assert [sealed["segment"] for sealed in seals] == [0]
    record.create_record(tmp_path, {"epoch": 2, "job": JOB, "seals": seals})
    assert audit.audit(tmp_path)["consumed"] == 1


def state_steps(directory, die_at: int, seen: int) -> None:
    ledger = open_ledger(LedgerPool(directory, 1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    store = state.StateStore(directory, 1, 0, ledger.published)
    step = DieAt(die_at)
    steps.install(step)
    for seq in range(1, 8):
        size = seq * 5000 if seq > 3 else 10
        ref = log.next_ref(seq)
        store.put("x", np.full(size, seq), ref)
        store.put("y", {"sum": seq}, ref)
        step("before the commit")
        log.append(seq)
        os.write(seen, bytes([seq]))
        step("after the commit")
        store.confirm()


@pytest.mark.parametrize("die_at", range(1, 100, 2))
def test_state_is_old_or_new_wherever_it_is_killed(tmp_path, die_at):
    make_directory(tmp_path)
    reader, writer = os.pipe()
    status = run_child(lambda: state_steps(tmp_path, die_at, writer))
    os.close(writer)
    with open(reader, "rb") as file:
        told = max(file.read(), default=0)
    assert killed(status) or die_at > 90
    seals = seal.close_rank(tmp_path, 1, 0)
    values = state.load_valid(tmp_path, 1, 0, seals)
    done = len(committed(tmp_path))
    assert done in (told, told + 1)
    if done == 0:
        assert values == {}
        return
    assert set(values) == {"x", "y"} and values["y"] == {"sum": done}
    assert values["x"].tolist() == [done] * (done * 5000 if done > 3 else 10)


def end_epoch(directory) -> None:
    """Close a ledger of two segments and one that was never opened, and write the record."""
    seals = [sealed for rank in (0, 1) for sealed in seal.close_rank(directory, 1, rank)]
    record.create_record(directory, {"epoch": 2, "job": JOB, "seals": seals}, durable=True)


def test_killed_at_every_step_of_the_end_of_an_epoch(tmp_path):
    """Whoever comes next finds the old epoch or the new one, and can go on from either."""
    told, number, status = tmp_path / "told", 0, 9
    while killed(status):
        number += 1
        directory = tmp_path / str(number)
        directory.mkdir()
        pool = make_directory(directory, pages=1)
        consumer = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
        consumer.append_seqs(np.arange(0, 3600, 2, dtype=np.uint64))
        status = run_child(lambda at=number, to=directory: _end_at(to, at, told))
        assert record.latest_epoch(directory) in (1, 2)
        assert audit.audit(directory)["consumed"] == 1800
        end_epoch(directory)
        assert len(record.read_record(directory, 2)["seals"]) == 3
        assert not list((directory / "epochs").glob(".tmp-*")) or killed(status)
        with pytest.raises(LedgerClosed):
            consumer.append(9999)
        assert audit.audit(directory)["consumed"] == 1800
    assert number > len(AT_THE_END_OF_AN_EPOCH)
    assert set(told.read_text().split()) >= AT_THE_END_OF_AN_EPOCH


def _end_at(directory, die_at: int, told) -> None:
    steps.install(DieAt(die_at, told))
    end_epoch(directory)


@pytest.mark.parametrize("die_at", range(1, 13))
def test_a_batch_is_whole_or_absent(tmp_path, die_at):
    """Its events join the word before it (4, 9, 7), follow, and begin words of their own."""
    pool = make_directory(tmp_path)
    batch = [9, 7, 10, 11, 1 << 31, 5, 6, 3]

    def work():
        open_commit()
        log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
        log.append(4)
        steps.install(DieAt(die_at))
        log.append_seqs(np.array(batch, np.uint64))

    assert killed(run_child(work)) == (die_at < 12)
    found = committed(tmp_path)
    assert found in ([4], [4, *batch])
    assert (len(found) > 1) == (die_at >= 11)


@pytest.mark.parametrize("die_at", range(1, 14))
def test_a_commit_into_a_word_is_whole_or_absent(tmp_path, die_at):
    pool = make_directory(tmp_path)
    reader, writer = os.pipe()

    def work():
        open_commit()
        log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
        log.append(4)
        steps.install(DieAt(die_at))
        for seq in (9, 7, 8, 1):
            log.append(seq)
            os.write(writer, bytes([seq]))

    assert killed(run_child(work)) == (die_at < 13)
    os.close(writer)
    with open(reader, "rb") as file:
        told = [4, *file.read()]
    whole = [4, 9, 7, 8, 1]
    assert committed(tmp_path) in (told, whole[: len(told) + 1])
