"""Processes that die at every step, and what is left of their ledgers."""

import os
import signal
import time

import h5py
import numpy as np
import pytest
from ledger_support import DieAt, killed, make_directory, open_ledger, run_child, start_child

from ftrt.ledger import log as ledger_log
from ftrt.ledger import record, seal, state
from ftrt.ledger.log import CONSUMED, SENT
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
    ledger_log._step = DieAt(die_at)
    ledger = open_ledger(LedgerPool(directory, 1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    for seq in range(0, 1200, 2):
        log.append(seq)
        os.write(seen, seq.to_bytes(8, "little"))
    ledger.stream(SENT, "b", 0, 1).finish(0)


@pytest.mark.parametrize("die_at", range(1, 13))
def test_killed_at_every_step_of_the_slow_path(tmp_path, die_at):
    make_directory(tmp_path)
    reader, writer = os.pipe()
    status = run_child(lambda: commit_a_lot(tmp_path, die_at, writer))
    os.close(writer)
    with open(reader, "rb") as file:
        told = np.frombuffer(file.read(), np.uint64).tolist()
    assert killed(status) or (status == 0 and die_at > 9)
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


def state_steps(directory, die_at: int, seen: int) -> None:
    ledger = open_ledger(LedgerPool(directory, 1))
    log = ledger.stream(CONSUMED, "a", 1, 0)
    store = state.StateStore(directory, 1, 0, ledger.published)
    step = DieAt(die_at)
    state._step = step
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


@pytest.mark.parametrize("die_at, exists", [(1, False), (2, True), (3, True)])
def test_record_is_whole_or_absent(tmp_path, die_at, exists):
    def work():
        record._step = DieAt(die_at)
        record.create_record(tmp_path, {"epoch": 2, "marks": list(range(1000))}, durable=True)

    assert killed(run_child(work)) == (die_at < 3)
    assert record.latest_epoch(tmp_path) == (2 if exists else None)
    if exists:
        assert record.read_record(tmp_path, 2)["marks"][-1] == 999
