"""Words that hold several events: what is read of them by whom, and at which time."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from kill_points import open_commit
from ledger_support import JOB, make_directory, open_ledger, run_child

from ftrt.errors import LedgerDamaged
from ftrt.ledger import audit, commit, layout, record, seal, steps
from ftrt.ledger.log import CONSUMED, LedgerClosed
from ftrt.ledger.segment import Segment
from ftrt.ledger.words import read_words

NAME = "e000001-r0000-s000.h5"
FAR = 1 << 30


def numbers(seals) -> list[int]:
    runs = [row for sealed in seals for _, rows in sealed.decoded for row in rows]
    return [start + i for start, length, _ in runs for i in range(length)]


def sealed_again(directory) -> list:
    """What is sealed now, once it has been read anew from the file."""
    seals = seal.close_rank(directory, 1, 0)
    for sealed in seals:
        again = seal.decode(directory, dict(sealed))
        assert [rows.tolist() for _, rows in again] == [r.tolist() for _, r in sealed.decoded]
    return seals


@pytest.mark.parametrize(
    "order, a_word",
    [
        (np.random.default_rng(1).permutation(60_000) * 2, 3),
        (np.random.default_rng(1).permutation(30_000_000)[:60_000], 2),
        (np.arange(60_000) + np.tile([0, FAR], 30_000), 1),
    ],
)
def test_events_that_do_not_follow_share_words(tmp_path, order, a_word):
    log = open_ledger(make_directory(tmp_path, pages=128)).stream(CONSUMED, "a", 1, 0)
    for seq in order[:30_000].tolist():
        log.append(seq)
    log.append_seqs(order[30_000:].astype(np.uint64))
    [sealed] = sealed_again(tmp_path)
    assert numbers([sealed]) == order.tolist()
    assert sealed["streams"][0]["words"] == pytest.approx(60_000 / a_word, rel=0.01)


@pytest.mark.parametrize("bits, form", [(27, layout.PAIR), (18, layout.TRIPLE)])
def test_the_largest_differences_that_fit(bits, form):
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    make = layout.pair_word if form == layout.PAIR else layout.triple_word
    for parts in itertools.product((low, -1, 0, 1, high), repeat=54 // bits):
        word = make(*parts, 0)
        assert layout.form_of(word) == form
        assert tuple(layout.difference_of(word, bits, at) for at in range(54 // bits)) == parts
        for at, bad in itertools.product(range(54 // bits), (low - 1, high + 1)):
            assert make(*parts[:at], bad, *parts[at + 1 :], 0) == 0


@pytest.mark.parametrize(
    "seqs, form",
    [
        ([5, 6, 7, 1000], layout.RUN),
        ([5, 5_000_000, FAR], layout.PAIR),
        ([5, 1000, 9, FAR], layout.TRIPLE),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_any_flipped_bit_of_a_word_is_found_in_a_live_ledger(tmp_path, seqs, form, last):
    log = open_ledger(make_directory(tmp_path)).stream(CONSUMED, "a", 1, 0)
    for seq in seqs[:-1] if last else seqs:
        log.append(seq)
    segment = Segment(tmp_path / NAME)
    assert layout.form_of(segment.words[0]) == form
    assert numbers([seal.seal(segment)]) == (seqs[:-1] if last else seqs)
    for bit in range(64):
        segment.words[0] ^= np.uint64(1 << bit)
        with pytest.raises(LedgerDamaged, match=f"{NAME}: run word 0 of .* of stream 0"):
            seal.read_streams(segment)
        segment.words[0] ^= np.uint64(1 << bit)


@pytest.mark.parametrize(
    "word, run",
    [
        (layout.pair_word(1, 1, 0), 3),  # the head counts more than it holds
        (layout.triple_word(1, 1, 1, 0), 4),
        (layout.pair_word(-1, 1, 0), 2),  # before the first number
    ],
)
def test_a_word_that_cannot_be_is_damage(tmp_path, word, run):
    open_ledger(make_directory(tmp_path)).stream(CONSUMED, "a", 1, 0).append(5)
    segment = Segment(tmp_path / NAME)
    segment.words[0] = word
    with pytest.raises(LedgerDamaged, match="run word 0 of 1"):
        read_words(segment, 0, 1, run)


@pytest.mark.parametrize("before", [[5], [5, 9]])
@pytest.mark.parametrize("batch", [False, True])
def test_a_commit_that_the_end_overtakes_changes_no_seal(tmp_path, before, batch):
    """Its event is in the word already when the ledger is sealed, or comes there after that."""
    seen = []
    for when in ("commit.extended", "commit.swap"):
        directory = tmp_path / when
        directory.mkdir()

        def work(to=directory, at=when):
            open_commit()
            log = open_ledger(make_directory(to)).stream(CONSUMED, "a", 1, 0)
            for seq in before:
                log.append(seq)
            early = sealed_at(to, at, lambda: commit_one(log))
            assert sealed_again(to)[0]["streams"] == early
            assert numbers(sealed_again(to)) == before

        def commit_one(log):
            with pytest.raises(LedgerClosed):
                log.append_seqs(np.array([2], np.uint64)) if batch else log.append(2)

        assert run_child(work) == 0
        seen.append(seal.close_rank(directory, 1, 0)[0]["streams"])
    assert seen[0] == seen[1]
    assert seen[0][0]["run"] == len(before)


def sealed_at(directory, point: str, act) -> list:
    """The seal that is made when ``act`` passes ``point``: closed before, and at the load."""
    found = []

    def end(name: str) -> None:
        if name == point and not found:
            found.extend(seal.close_rank(directory, 1, 0)[0]["streams"])

    steps.install(end)
    act()
    steps.install(None)
    return found


@pytest.mark.parametrize("before", [[5], [5, 9], [5, 9, 3], [5, 6]])
@pytest.mark.parametrize("bad", [[2, 1 << 50], [2, *range(FAR, FAR + 3000 * 2, 2)]])
def test_a_batch_that_does_not_fit_leaves_the_last_word(tmp_path, before, bad):
    log = open_ledger(make_directory(tmp_path, pages=1)).stream(CONSUMED, "a", 1, 0)
    for seq in before:
        log.append(seq)
    segment = Segment(tmp_path / NAME)
    words = segment.words.copy()
    status = commit.append_batch(log._whole, log._cursor, np.array(bad, np.uint64))
    assert status == commit.RANGE or status > 512
    assert segment.words[0] == words[0] or before == [5, 6]  # the length of a last run is no one's
    log.append(before[-1] + 1)  # goes on with what the last word was
    log.append(2)
    assert numbers(sealed_again(tmp_path)) == [*before, before[-1] + 1, 2]


def test_dropped_events_share_words_among_themselves(tmp_path):
    log = open_ledger(make_directory(tmp_path)).stream(CONSUMED, "a", 1, 0)
    for seq, dropped in ((5, 1), (9, 1), (2, 1), (7, 0), (3, 1), (8, 0), (4, 0)):
        log.append(seq, dropped=bool(dropped))
    log.append_seqs(np.array([6], np.uint64))
    [sealed] = sealed_again(tmp_path)
    assert sealed.decoded[0][1][:, [0, 2]].tolist() == [
        *([5, 1], [9, 1], [2, 1], [7, 0], [3, 1], [8, 0], [4, 0], [6, 0])
    ]
    assert sealed["streams"][0]["words"] == 4
    assert audit.audit(tmp_path)["dropped"] == 4


def as_version_1(path, words: list[int], run: int) -> None:
    """Make a segment what version 1 wrote: runs with lengths of 24 bits, and nothing else."""
    segment = Segment(path)
    segment.header["version"] = 1
    segment.header["check"] = layout.fields_check(segment.header, layout.HEADER_FIELDS)
    user = np.frombuffer(segment._map, layout.USER, 1)[0]
    user["version"] = 1
    user["check"] = layout.fields_check(user, layout.USER_FIELDS)
    segment.words[: len(words)] = words
    segment.whole[segment.head_index(0)] = layout.head_word(len(words), run)


def test_a_ledger_of_version_1_is_read(tmp_path):
    open_ledger(make_directory(tmp_path)).stream(CONSUMED, "a", 1, 0).append(1)
    long = 3 << 22  # in version 2 this length would be another form
    as_version_1(tmp_path / NAME, [layout.run_word(1, long, 0), layout.run_word(1 << 30, 9, 0)], 7)
    assert audit.audit(tmp_path)["consumed"] == long + 7
    seals = sealed_again(tmp_path)
    assert seals[0].decoded[0][1].tolist() == [[1, long, 0], [1 << 30, 7, 0]]
    record.create_record(tmp_path, {"epoch": 2, "job": JOB, "seals": seals})
    assert audit.audit(tmp_path)["consumed"] == long + 7
    log = open_ledger(make_directory(tmp_path), epoch=2).stream(CONSUMED, "a", 1, 0)
    log.append_seqs(np.array([long + 3, long + 1], np.uint64))
    assert audit.audit(tmp_path)["consumed"] == long + 9
    assert os.path.exists(tmp_path / "e000002-r0000-s000.h5")
