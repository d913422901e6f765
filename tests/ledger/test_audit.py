"""The audit: green on what is right, red on each planted fault."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_support import JOB, open_ledger

from ftrt.errors import LedgerDamaged, LedgerError
from ftrt.ledger import record, runs, seal
from ftrt.ledger.audit import audit
from ftrt.ledger.log import CONSUMED, SENT


def span(first, last) -> np.ndarray:
    return np.arange(first, last + 1, dtype=np.uint64)


def both_ends(pool, epoch=1, dest=1):
    return (
        open_ledger(pool, epoch, 0).stream(SENT, "s", 0, dest),
        open_ledger(pool, epoch, dest).stream(CONSUMED, "s", 0, dest),
    )


def end_epoch(pool, epoch=1):
    seals = [s for rank in (0, 1) for s in seal.close_rank(pool.directory, epoch, rank)]
    members = [{"rank": rank} for rank in (0, 1)]
    new = {"epoch": epoch + 1, "parent": epoch, "job": JOB, "seals": seals, "members": members}
    record.create_record(pool.directory, new)


def test_clean(pool):
    out, into = both_ends(pool)
    out.append_seqs(span(1, 100))
    out.finish(100)
    into.append_seqs(span(1, 98))
    into.append(99, 2, dropped=True)
    assert audit(pool.directory) == {
        "ok": True,
        "epochs": 1,
        "sent": 100,
        "consumed": 98,
        "dropped": 2,
        "duplicates": 0,
        "losses": 0,
        "open": 0,
        "streams": [
            {
                "stream": "s",
                "source": 0,
                "sent": 100,
                "consumed": 98,
                "dropped": 2,
                "duplicates": 0,
                "losses": 0,
                "closed": True,
            }
        ],
    }
    json.dumps(audit(pool.directory))


@pytest.mark.parametrize(
    "consumed, duplicates, losses",
    [
        ([*range(1, 11), 4], 1, 0),
        ([*range(1, 10)], 0, 1),
        ([*range(2, 11)], 0, 1),
        ([], 0, 10),
        ([*range(1, 6), *range(4, 11)], 2, 0),
        ([1, 1, 1], 2, 9),
        ([*range(10, 0, -1)], 0, 0),
    ],
)
def test_planted_faults(pool, consumed, duplicates, losses):
    out, into = both_ends(pool)
    out.append_seqs(span(1, 10))
    out.finish(10)
    into.append_seqs(np.array(consumed, np.uint64))
    found = audit(pool.directory)
    assert (found["duplicates"], found["losses"]) == (duplicates, losses)
    assert found["ok"] == (duplicates == losses == 0)


def test_last_message_that_only_its_close_shows(pool):
    out, into = both_ends(pool)
    out.append_seqs(span(1, 9))
    out.finish(10)
    into.append_seqs(span(1, 9))
    found = audit(pool.directory)
    assert found["losses"] == 1 and not found["ok"]


def test_stream_without_a_close_is_open(pool):
    out, into = both_ends(pool)
    out.append(1, 5)
    into.append(1, 5)
    found = audit(pool.directory)
    assert found["open"] == 1 and not found["ok"] and found["losses"] == 0


def test_empty_stream(pool):
    both_ends(pool)[0].finish(0)
    assert audit(pool.directory)["ok"]


def test_effect_of_a_number_that_nobody_sent(pool):
    out, into = both_ends(pool)
    out.append(1, 5)
    out.finish(5)
    into.append(1, 6)
    found = audit(pool.directory)
    assert not found["ok"] and found["streams"][0]["unsent"] == 1


def test_consumed_and_dropped_is_a_duplicate(pool):
    out, into = both_ends(pool)
    out.append(1, 5)
    out.finish(5)
    into.append(1, 5)
    into.append(3, dropped=True)
    assert audit(pool.directory)["duplicates"] == 1


def test_over_epochs_with_resends(pool):
    out, into = both_ends(pool)
    out.append(1, 10)
    into.append(1, 7)
    end_epoch(pool)
    out, into = both_ends(pool, 2)
    out.append(8, 13)
    into.append(8, 13)
    out.finish(20)
    found = audit(pool.directory)
    assert found["ok"] and found["epochs"] == 2 and found["sent"] == found["consumed"] == 20


def test_redelivery_over_epochs_shows(pool):
    out, into = both_ends(pool)
    out.append(1, 10)
    into.append(1, 7)
    end_epoch(pool)
    out, into = both_ends(pool, 2)
    into.append(7, 4)
    out.finish(10)
    assert audit(pool.directory)["duplicates"] == 1


def test_ledger_that_the_record_does_not_seal_is_void(pool):
    out, into = both_ends(pool)
    out.append(1, 3)
    into.append(1, 3)
    open_ledger(pool, 1, 5).stream(CONSUMED, "s", 0, 1).append(1)
    end_epoch(pool)
    both_ends(pool, 2)[0].finish(3)
    assert audit(pool.directory)["ok"]


def test_sealed_file_that_changed_is_named(pool):
    out, into = both_ends(pool)
    into.append_seqs(np.array([3, 1, 2], np.uint64))
    end_epoch(pool)
    path = pool.directory / "e000001-r0001-s000.h5"
    whole = into._part.segment.words
    whole[0] += np.uint64(1)
    with pytest.raises(LedgerDamaged, match=path.name):
        audit(pool.directory)
    path.unlink()
    with pytest.raises(LedgerDamaged, match=f"{path.name}: is missing"):
        audit(pool.directory)


def test_one_row_for_each_receiver(pool):
    sender = open_ledger(pool, 1, 0)
    for dest in (1, 2):
        out = sender.stream(SENT, "s", 0, dest)
        out.append(1, 5)
        out.finish(5)
        open_ledger(pool, 1, dest).stream(CONSUMED, "s", 0, dest).append(1, 6 - dest)
    rows = audit(pool.directory)["streams"]
    assert [(row["dest"], row["losses"]) for row in rows] == [(1, 0), (2, 1)]


def test_ledgers_made_beforehand_are_no_epoch(pool):
    out, _ = both_ends(pool)
    out.finish(0)
    pool.claim(2, 0, 0, job=JOB, attempt=1, incarnation=0)
    found = audit(pool.directory)
    assert found["ok"] and found["epochs"] == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("job.json", "cannot be read: No such file"),
        ("epochs/000001.json", "is missing, epoch 2 follows it"),
        ("epochs/000002.json", "is missing, epoch 3 follows it"),
        ("epochs/000003.json", "was written in that epoch"),
        ("e000001-r0000-s000.h5", "the record of a later epoch seals it"),
        ("e000003-r0000-s000.h5", "rank 0 is in epoch 3"),
        ("e000003-r0001-s000.h5", "rank 1 is in epoch 3"),
    ],
)
def test_a_file_that_was_removed_is_named(pool, name, why):
    for epoch in (1, 2, 3):
        out, into = both_ends(pool, epoch)
        seqs = span(10 * epoch - 9, 10 * epoch)
        out.append_seqs(seqs)
        into.append_seqs(seqs)
        if epoch < 3:
            end_epoch(pool, epoch)
    out.finish(30)
    assert audit(pool.directory)["ok"] and audit(pool.directory)["consumed"] == 30
    (pool.directory / name).unlink()
    with pytest.raises(LedgerDamaged, match=why) as damaged:
        audit(pool.directory)
    assert str(damaged.value).startswith(str(pool.directory / name))


def test_nothing_to_audit(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(LedgerError, match="no such|holds no ledger"):
            audit(path)


def test_hundred_million_in_order(pool):
    out, into = both_ends(pool)
    step = 4_000_000
    for first in range(1, 25 * step, step):
        out.append(first, step)
        into.append(first, step)
    out.finish(10 * step)
    begin = time.perf_counter()
    assert audit(pool.directory)["ok"] and time.perf_counter() - begin < 1.0


_intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(_intervals, _intervals)
def test_interval_arithmetic_is_set_arithmetic(left, right):
    rows = [
        np.array([(a, a + n) for a, n in side], np.int64).reshape(-1, 2) for side in (left, right)
    ]
    sets = [{i for a, n in side for i in range(a, a + n)} for side in (left, right)]
    assert runs.size(runs.union(*rows)) == len(sets[0] | sets[1])
    assert runs.minus(*rows) == len(sets[0] - sets[1])
