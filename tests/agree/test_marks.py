"""Marks against a plain set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrt.agree.marks import Marks, StreamMarks, merged
from ftrt.errors import InvariantBroken, LedgerDamaged

RUN = st.tuples(st.integers(1, 60), st.integers(0, 9))
RUNS = st.lists(RUN, max_size=25)


def as_set(runs):
    return {seq for start, length in runs for seq in range(start, start + length)}


def flat(ranges):
    return [seq for start, end in ranges for seq in range(start, end + 1)]


def check(marks, model):
    """Compare every view of the marks, and their canonical form."""
    assert marks.count == len(model)
    assert flat(marks.ranges) == sorted(model)
    assert [seq for seq in range(80) if marks.contains(seq)] == sorted(model)
    assert marks.highest == max(model, default=0)
    edges = [marks.hwm] + [edge for pair in marks.above for edge in pair]
    assert all(b > a + 1 for a, b in zip(edges[::2], edges[1::2], strict=False))
    assert all(marks.covers(n) == model.issuperset(range(1, n + 1)) for n in range(80))


@given(RUNS)
def test_add_counts_what_is_new(runs):
    marks, model = Marks(), set()
    for start, length in runs:
        fresh = as_set([(start, length)]) - model
        assert marks.add(start, length) == len(fresh)
        model |= fresh
        check(marks, model)


@given(RUNS)
def test_from_runs_is_the_same_as_adding(runs):
    marks = Marks()
    for run in runs:
        marks.add(*run)
    built = Marks.from_runs([s for s, _ in runs], [n for _, n in runs])
    assert built == marks


@given(RUNS, RUNS)
def test_merge_is_union_and_leaves_the_other(ours, theirs):
    mine, other = (Marks.from_runs([s for s, _ in r], [n for _, n in r]) for r in (ours, theirs))
    before = other.copy()
    mine.merge(other)
    check(mine, as_set(ours) | as_set(theirs))
    assert other == before


@given(RUNS, st.integers(0, 80), st.integers(1, 80))
def test_missing_is_the_complement(runs, upto, since):
    model = as_set(runs)
    marks = Marks.from_runs([s for s, _ in runs], [n for _, n in runs])
    assert flat(marks.missing(upto)) == [n for n in range(1, upto + 1) if n not in model]
    assert flat(marks.missing(upto, since)) == [n for n in range(since, upto + 1) if n not in model]


@given(RUNS)
def test_json_goes_there_and_back(runs):
    marks = Marks.from_runs([s for s, _ in runs], [n for _, n in runs])
    assert Marks.from_json(marks.to_json()) == marks
    entry = StreamMarks("s", 1, 2, marks, sent=70, last=0, next_seq=71)
    assert StreamMarks.from_json(entry.to_json()) == entry


def test_a_copy_is_independent():
    marks = Marks(3, [(7, 8)])
    twin = marks.copy()
    twin.add(5)
    assert not marks.contains(5)


@pytest.mark.parametrize("data", [{}, {"hwm": -1, "above": []}, {"hwm": 0, "above": [[3, 2]]}, []])
def test_damaged_json_is_named(data):
    with pytest.raises(LedgerDamaged, match="not marks"):
        Marks.from_json(data)
    with pytest.raises(LedgerDamaged):
        StreamMarks.from_json(data)


@pytest.mark.parametrize(("start", "length"), [(0, 1), (-3, 9), (1, -1)])
def test_impossible_numbers_change_nothing(start, length):
    marks = Marks(2)
    with pytest.raises(InvariantBroken):
        marks.add(start, length)
    assert marks == Marks(2)


def test_many_ranges_are_built_at_once():
    n = 100_000
    marks = Marks.from_runs(range(2 * n, 0, -2), [1] * n)
    assert (marks.hwm, marks.count, len(marks.above)) == (0, n, n)
    assert marks.missing(9) == [(k, k) for k in range(1, 10, 2)]


def test_stream_marks_merge_and_refuse_contradictions():
    ours = StreamMarks("s", 0, 1, Marks(3), sent=5, next_seq=6)
    table = merged({ours.key: ours}, {ours.key: StreamMarks("s", 0, 1, Marks(4), 4, 9, 5)})
    assert table[ours.key] == StreamMarks("s", 0, 1, Marks(4), 5, 9, 6)
    assert ours.marks == Marks(3)
    with pytest.raises(InvariantBroken, match="closed at 9 and at 8"):
        table[ours.key].merge(StreamMarks("s", 0, 1, last=8))
    with pytest.raises(InvariantBroken, match="cannot be merged"):
        ours.merge(StreamMarks("other", 0, 1))
