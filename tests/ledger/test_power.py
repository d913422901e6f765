"""Class power: what is marked durable survives a power cut, and nothing else is believed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
import uuid

import numpy as np
import power_cut
import pytest
from ledger_support import JOB, killed, make_directory, mounted, run_child

from ftrt.errors import LedgerError
from ftrt.ledger import audit, durable, record, seal, state
from ftrt.ledger.log import CONSUMED, Ledger
from ftrt.ledger.pool import LedgerPool
from ftrt.ledger.spool import Spool
from ftrt.ledger.sync import Syncer, sync_for


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "ledger"
    path.mkdir()
    return path


def begin_job(directory) -> None:
    """As the agent does: the ledger of an epoch is there before its record."""
    record.create_job(directory, {"job": JOB, "stable": "power"})
    LedgerPool(directory, pages=1).claim(1, 0, 0, job=JOB, attempt=1, incarnation=0)
    record.create_record(directory, {"epoch": 1, "job": JOB}, durable=True)


class Rank:
    """Consumes two streams into one sum, and syncs when it is told."""

    def __init__(self, directory, attempt: int = 1):
        pool = LedgerPool(directory, pages=1)
        identity = {"job": JOB, "attempt": attempt, "epoch": 1, "rank": 0, "incarnation": 1}
        self.ledger = Ledger.open(pool, **identity)
        self.store = state.StateStore(directory, 1, 0, self.ledger.published)
        self.syncer = Syncer(directory, 0, interval_s=3600)
        self.syncer.watch(self.ledger, self.store)
        self.logs = [self.ledger.stream(CONSUMED, "a", source, 0) for source in (1, 2)]
        self.seen = [0, 0]

    def consume(self, source: int, length: int) -> None:
        seq = self.seen[source] + 2  # every number makes a run of its own
        ref = self.logs[source].next_ref(seq)
        counts = list(self.seen)
        counts[source] = seq
        self.store.put("seen", counts, ref)
        self.store.put("array", np.full(length, sum(counts)), ref)
        self.logs[source].append(seq)
        self.seen = counts


def consume_and_sync(directory, store, seed: int, told: int, tail: int = 0) -> None:
    power_cut.record(store)
    begin_job(directory)
    dice = random.Random(seed)
    rank = Rank(directory)
    for _ in range(dice.randint(1, 6)):
        for _ in range(dice.choice([1, 3, 300])):
            rank.consume(dice.randrange(2), dice.choice([10, 10, 10, 3000]))
        if dice.random() < 0.8:
            rank.syncer.sync()
            os.write(told, np.array(rank.seen, np.int64).tobytes())
    for _ in range(tail):
        rank.consume(dice.randrange(2), 10)
    os.kill(os.getpid(), signal.SIGKILL)


def ended(directory) -> tuple[list[int], dict]:
    """Highest number of each stream and the state, as a later attempt finds them."""
    seals = seal.RankCloser(directory, 1, 0, attempt=2).close()
    found = seal.marks_of([pair for sealed in seals for pair in sealed.decoded])
    highest = [
        max([0, *found.get(("a", source, 0), np.empty((0, 2), np.int64))[:, 0]])
        for source in (1, 2)
    ]
    return highest, state.load_valid(directory, 1, 0, seals)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_what_the_mark_says(tmp_path, directory, monkeypatch, seed):
    store = tmp_path / "synced"
    store.mkdir()
    reader, writer = os.pipe()
    assert killed(run_child(lambda: consume_and_sync(directory, store, seed, writer)))
    os.close(writer)
    with open(reader, "rb") as file:
        told = np.frombuffer(file.read(), np.int64).reshape(-1, 2).tolist()
    promised = told[-1] if told else [0, 0]
    power_cut.cut(directory, store, seed)
    monkeypatch.setattr(durable, "boot_id", lambda: uuid.UUID(int=seed).bytes)
    for _ in range(2):  # ending it again gives the same
        highest, values = ended(directory)
        assert highest == promised
        if told:
            assert values["seen"] == promised
            assert (values["array"] == sum(promised)).all()
        else:
            assert values == {}
    assert audit.audit(directory)["consumed"] == sum(promised) // 2


def test_what_was_not_synced_is_lost_without_the_mark(tmp_path, directory):
    """The disk of these tests does lose things: read as if the machine had stayed up, they are."""
    wrong = 0
    for seed in range(20):
        folder, store = directory / str(seed), tmp_path / f"synced{seed}"
        folder.mkdir()
        store.mkdir()
        null = os.open(os.devnull, os.O_WRONLY)
        run_child(lambda f=folder, s=store, n=seed, to=null: consume_and_sync(f, s, n, to, 100))
        os.close(null)
        power_cut.cut(folder, store, seed)
        try:
            highest, values = ended(folder)
            wrong += values.get("seen", [0, 0]) != highest
        except (LedgerError, IndexError):
            wrong += 1
    assert wrong > 3


def test_a_sync_that_fails_is_final(directory, monkeypatch):
    begin_job(directory)
    rank = Rank(directory)
    rank.consume(0, 10)
    rank.syncer.sync()
    rank.consume(0, 10)
    calls = []

    def broken(descriptor):
        calls.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(LedgerError, match=r"rank 0: .*Input/output error.*--resume"):
        rank.syncer.sync()
    monkeypatch.undo()
    for call in (rank.syncer.sync, rank.syncer.check, rank.syncer.stop):
        with pytest.raises(LedgerError, match="Input/output error"):
            call()
    assert len(calls) == 1
    # The kernel tells it once: a sync of the same file by anybody else would succeed now.
    with pytest.raises(LedgerError, match="could not be synced"):
        sync_for(directory, 1, 0)
    with pytest.raises(LedgerError, match="could not be synced"):
        seal.RankCloser(directory, 1, 0, attempt=1).close()
    assert ended(directory) == ([2, 0], {"seen": [2, 0], "array": pytest.approx(np.full(10, 2.0))})


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path, "size=2m"):
        yield tmp_path


def test_a_full_disk_fails_the_mark_and_leaves_the_old_one(small_disk):
    begin_job(small_disk)
    rank = Rank(small_disk)
    rank.consume(0, 10)
    rank.syncer.sync()
    rank.consume(0, 10)
    with open(small_disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(1024))
    with pytest.raises(LedgerError, match="No space left"):
        rank.syncer.sync()
    assert not list(small_disk.glob(".tmp-*"))
    assert ended(small_disk)[0] == [2, 0]


def test_the_thread_keeps_the_interval(directory):
    begin_job(directory)
    rank = Rank(directory)
    syncer = Syncer(directory, 0, interval_s=0.02)
    syncer.watch(rank.ledger, rank.store)
    rank.consume(0, 10)
    deadline = time.monotonic() + 5
    while not seal.durably_consumed(directory, 1, 0).get(("a", 1, 0), np.empty(0)).size:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    rank.consume(1, 10)
    syncer.stop()
    assert {key: runs.tolist() for key, runs in seal.durably_consumed(directory, 1, 0).items()} == {
        ("a", 1, 0): [[2, 1]],
        ("a", 2, 0): [[2, 1]],
    }


def test_a_spool_is_synced_before_the_commits_behind_it(tmp_path, directory):
    order = []
    begin_job(directory)
    rank = Rank(directory)
    spool = Spool(directory, "out", 0, 1)
    rank.syncer.add_spool(spool)
    spool.append(1, np.arange(10))
    rank.consume(0, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: order.append(os.readlink(f"/proc/self/fd/{fd}")))
        rank.syncer.sync()
    names = [os.path.basename(path) for path in order]
    assert names[0].startswith("spool-") and names[-1] == "e000001-r0000-s000.h5"


def test_names_are_synced_before_the_mark_that_needs_them(directory, monkeypatch):
    begin_job(directory)
    rank = Rank(directory)
    rank.consume(0, 10)
    order: list[str] = []
    replace, fsync = os.replace, os.fsync

    def synced(descriptor):
        order.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def replaced(source, target):
        order.append("marked")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    rank.syncer.sync()
    assert str(directory) in order[: order.index("marked")]
    assert str(directory) in order[order.index("marked") :]  # and the mark's own name


def test_what_a_source_keeps_is_synced_before_what_was_consumed_of_it(directory):
    order = []
    begin_job(directory)
    rank = Rank(directory)
    rank.syncer.add_source("in/a", 1)
    spools = [Spool(directory, "in/a", 1, epoch) for epoch in (1, 2)]
    Spool(directory, "in/a", 2, 1)  # of another source
    rank.consume(0, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: order.append(os.readlink(f"/proc/self/fd/{fd}")))
        rank.syncer.sync()
        assert sorted(order[:2]) == sorted(str(spool.path) for spool in spools)
        assert len(order) == 4 and order[-1].endswith("e000001-r0000-s000.h5")
        spools[0].path.unlink()
        order.clear()
        rank.consume(1, 10)
        rank.syncer.sync()
    assert order[0] == str(spools[1].path) and not any("spool" in path for path in order[1:])


def test_a_spool_ends_at_the_first_number_that_it_lacks(directory):
    spool = Spool(directory, "out", 0, 1)
    places = {}
    for seq in range(1, 9):
        places[seq] = os.path.getsize(spool.path)
        spool.append(seq, np.full(700, seq))
    spool.close()
    with open(spool.path, "r+b") as file:
        file.seek(places[5] + 100)
        file.write(bytes(50))  # a power cut took a sector of it
    later = Spool(directory, "out", 0, 2)
    assert later.resume(3) == 5
    later.append(5, np.full(700, 55))
    later.close()  # and the life after this one does not see 6 either
    last = Spool(directory, "out", 0, 3)
    assert last.resume(3) == 6
    assert [int(last.read(seq)[0]) for seq in (3, 4, 5)] == [3, 4, 55]
    assert last.kept_bytes == 5 * (places[2] - places[1])
    assert last.resume(20) == 20  # what receivers have needs no spool


def test_a_durable_record_syncs_what_senders_keep(directory):
    order = []
    begin_job(directory)
    spool = Spool(directory, "out", 0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: order.append(os.readlink(f"/proc/self/fd/{fd}")))
        record.create_record(directory, {"epoch": 2, "job": JOB}, durable=True)
        assert order == [str(spool.path)]
        record.create_record(directory, {"epoch": 3, "job": JOB})
    assert len(order) == 1


def test_class_process_does_not_outlive_its_kernel(directory, monkeypatch):
    make_directory(directory)
    Rank(directory).consume(0, 10)
    assert ended(directory)[0] == [2, 0]
    monkeypatch.setattr(durable, "boot_id", lambda: bytes(16))
    with pytest.raises(LedgerError, match="--stable power .*--stable host"):
        ended(directory)
    assert audit.audit(directory)["consumed"] == 1


def test_a_disk_in_memory_cannot_give_the_class(small_disk):
    record.check_directory(small_disk)
    with pytest.raises(LedgerError, match="in memory .tmpfs.*--stable process"):
        record.check_directory(small_disk, stable="power")
