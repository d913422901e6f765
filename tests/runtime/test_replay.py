"""What replay() returns a second time is compared before anybody gets it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import ROOT, run_job

from ftrt.oracle import check_effects
from ftrt.runtime.digests import FREED_AT_ONCE, Digests, digests_of

WHERE = ["head", "middle", "sealed", "word"]
PROGRAM = ROOT / "tests" / "runtime" / "two_receivers.py"


def job(directory, *arguments):
    options = ["-n", 3, "--spares", 1]
    return run_job(directory, options, PROGRAM, directory, *arguments)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_replay_that_differs_is_refused_before_anybody_has_it(tmp_path, batch):
    ended = job(tmp_path, "unsteady", batch)
    assert ended.status == 1, ended.output
    first = 4 * batch + 1  # rank 1 has it, rank 2 does not
    assert (
        f"ReplayMismatch: rank 0, stream 'numbers': replay({first}) returned another message than "
        "the one that was sent to other receivers before"
    ) in ended.output
    assert "or use spool=True" in ended.output
    expected = {(1, "numbers", 0): 40, (2, "numbers", 0): 40}
    oracle = check_effects(tmp_path / "effects", expected)
    assert not oracle["duplicates"]
    assert {(2, "numbers", 0, seq) for seq in range(first, 41)} <= set(oracle["losses"])


@pytest.mark.parametrize("batch", [1, 4])
def test_a_replay_that_keeps_its_promise_goes_on(tmp_path, batch):
    ended = job(tmp_path, "steady", batch)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == 1
    oracle = check_effects(tmp_path / "effects", {(1, "numbers", 0): 40, (2, "numbers", 0): 40})
    assert not oracle["duplicates"] and not oracle["losses"], oracle


DAMAGED = """
import sys
import numpy as np
import ftrt
def made(seq):
    return np.full(100, seq if sys.argv[1] == "steady" else seq + len(calls), np.int64)
calls = []
def replay(seq):
    calls.append(seq)
    return made(seq)
with ftrt.init() as rt:
    if rt.rank == 0:
        with rt.sender("numbers", to=1, replay=replay, window=4) as out:
            for seq in range(out.next_seq, 41):
                out.send(made(seq))
    else:
        total = 0
        for message in rt.receiver("numbers", source=0):
            assert (message.array == message.seq).all()
            with message.consume() as effect:
                total = effect["sum"] = total + message.seq
        print("digest", total)
"""


@pytest.mark.parametrize("how", ["steady", "unsteady"])
def test_what_heals_a_damaged_slot_is_compared_with_its_header(tmp_path, how):
    program = tmp_path / "damaged.py"
    program.write_text(DAMAGED)
    ended = run_job(tmp_path, ["-n", 2, "--fault", "corrupt:1@20msg"], program, how)
    assert ended.named("damaged")
    if how == "steady":
        assert ended.status == 0, ended.output
        assert ended.named("healed")
        return
    assert ended.status == 1, ended.output
    assert "returned another message than the one that rank 1 received damaged" in ended.output
    assert not ended.named("healed")


@pytest.mark.parametrize("how, where", [*(("replay", w) for w in WHERE), ("spool", "sealed")])
def test_a_damaged_slot_of_a_dead_sender_costs_nothing(tmp_path, how, where):
    program = ROOT / "tests" / "runtime" / "damaged_and_dead.py"
    ended = run_job(tmp_path, ["-n", 2, "--spares", 1], program, tmp_path, how, where)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == 1
    assert bool(ended.named("healed")) == (where in ("sealed", "word"))
    assert ended.report["audit"]["consumed"] == ended.report["audit"]["sent"] == 60
    oracle = check_effects(tmp_path / "effects", {(1, "numbers", 0): 60})
    assert not oracle["duplicates"] and not oracle["losses"], oracle


def test_a_digest_is_of_bytes_dtype_shape_and_number():
    rows = np.arange(60, dtype=np.int32).reshape(5, 3, 4)
    found = digests_of(rows, 7)
    for row in range(5):
        assert digests_of(rows[row : row + 1], 7 + row)[0] == found[row]
    others = [rows[1], rows[1].astype(np.uint32), rows[1].reshape(4, 3), rows[1].T, rows[2]]
    kinds = {int(digests_of(other[None], 8)[0]) for other in others}
    assert len(kinds) == 5 and int(digests_of(rows[1][None], 9)[0]) not in kinds
    flipped = rows[1].copy()
    flipped[2, 3] ^= 1
    assert digests_of(flipped[None], 8)[0] != found[1]
    assert digests_of(np.zeros((2, 0)), 1).all()


def test_digests_outlive_their_writer_and_the_later_life_counts(tmp_path):
    rows = np.arange(20.0).reshape(10, 2)
    first = Digests(tmp_path, "a/b", 3, 1)
    first.keep(1, rows)
    later = Digests(tmp_path, "a/b", 3, 4)
    first.keep(8, rows[7:8] + 1)  # of a message that nobody got
    later.keep(8, rows[7:8])
    last = Digests(tmp_path, "a/b", 3, 5)
    for life in (later, last):
        assert [life.find(seq) for seq in range(1, 11)] == digests_of(rows, 1).tolist()
        assert life.find(11) is None
    assert Digests(tmp_path, "a/b", 2, 5).find(1) is None
    last.free(9)
    assert last.find(10) and len(list(tmp_path.glob("digests-a%2Fb-r0003-*"))) == 2
    last.free(10)
    assert last.find(10) is None and len(list(tmp_path.glob("digests-a%2Fb-r0003-*"))) == 1


def test_digests_give_their_storage_back(tmp_path):
    digests = Digests(tmp_path, "a", 0, 1)
    count = 4 * FREED_AT_ONCE
    digests.keep(1, np.zeros((count, 1)))
    os.fsync(os.open(digests.path, os.O_RDONLY))
    before = digests.path.stat().st_blocks
    digests.free(count - 5)
    assert digests.path.stat().st_blocks < before / 2
    assert all(digests.find(seq) for seq in range(count - 4, count + 1))
    digests.close()
