"""The oracle finds what is planted, and nothing else."""

import pytest

from ftrt.oracle import Effects, check_effects

EXPECTED = {(1, "s", 0): 3}


def record(directory, *lines, rank=1):
    """Write one incarnation: "B2" begins number 2 of the stream, "C2" commits it."""
    with Effects(directory, rank) as effects:
        for line in lines:
            (effects.begin if line[0] == "B" else effects.committed)("s", 0, int(line[1:]))


def check(directory, expected=EXPECTED):
    return check_effects(directory, expected)


def test_a_complete_run_is_clean(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "C2", "B3", "C3")
    assert check(tmp_path) == {"losses": [], "duplicates": [], "ambiguous": []}


def test_a_planted_double_effect_is_found_across_incarnations(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "C2")
    record(tmp_path, "B2", "C2", "B3", "C3")
    assert check(tmp_path) == {"losses": [], "duplicates": [(1, "s", 0, 2)], "ambiguous": []}


def test_a_planted_double_effect_is_found_within_one_incarnation(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "C2", "C2", "B3", "C3")
    assert check(tmp_path)["duplicates"] == [(1, "s", 0, 2)]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_planted_lost_effect_is_found_wherever_it_was(tmp_path, lost):
    record(tmp_path, *(f"{what}{seq}" for seq in (1, 2, 3) if seq != lost for what in "BC"))
    assert check(tmp_path) == {"losses": [(1, "s", 0, lost)], "duplicates": [], "ambiguous": []}


def test_an_effect_that_a_death_cut_off_is_ambiguous(tmp_path):
    record(tmp_path, "B1", "C1", "B2")
    record(tmp_path, "B3", "C3")
    assert check(tmp_path) == {"losses": [], "duplicates": [], "ambiguous": [(1, "s", 0, 2)]}


def test_an_effect_that_was_cut_off_and_made_again_is_clean(tmp_path):
    record(tmp_path, "B1", "C1", "B2")
    record(tmp_path, "B2", "C2", "B3", "C3")
    assert check(tmp_path) == {"losses": [], "duplicates": [], "ambiguous": []}


def test_a_begin_in_the_middle_of_an_incarnation_is_a_loss(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "B3", "C3")
    assert check(tmp_path)["losses"] == [(1, "s", 0, 2)]


def test_a_number_beyond_the_last_or_at_another_rank_is_a_duplicate(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "C2", "B3", "C3", "B4", "C4")
    record(tmp_path, "B1", "C1", rank=2)
    assert check(tmp_path)["duplicates"] == [(1, "s", 0, 4), (2, "s", 0, 1)]


def test_a_line_that_a_death_cut_short_does_not_count(tmp_path):
    record(tmp_path, "B1", "C1", "B2", "C2", "B3", "C3")
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:-1])
    assert check(tmp_path)["ambiguous"] == [(1, "s", 0, 3)]


def test_a_line_that_is_no_effect_is_refused(tmp_path):
    record(tmp_path, "B1")
    (path,) = tmp_path.iterdir()
    path.write_text("B s 0 1\nX s 0 1\n")
    with pytest.raises(ValueError, match=":2 is not an effect"):
        check(tmp_path)


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("not ours")
    assert len(check(tmp_path)["losses"]) == 3


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(None, "B1", "C1")
    assert not list(tmp_path.iterdir())
