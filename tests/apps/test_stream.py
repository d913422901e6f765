"""The stream app against its closed form, with deaths at every step."""

from dataclasses import replace

import numpy as np
import pytest
import stream
from click import ClickException
from click.testing import CliRunner
from fake_runtime import Cluster

from ftrt.oracle import check_effects

SMALL = stream.Options(messages=12, size=24, quiet=True)


def digest(capsys, size, options, die=()):
    """Run the app; return its digest and the number of deaths."""
    cluster = Cluster(size, die)
    cluster.run(lambda rt: stream.run(rt, options))
    *_, last = capsys.readouterr().out.splitlines()
    word, value = last.split()
    assert word == "digest" and len(value) == 64
    return value, cluster.deaths


@pytest.mark.parametrize("size", [0, 8, 24, 4096])
@pytest.mark.parametrize("messages", [0, 1, 17])
def test_the_closed_form_is_the_sum(size, messages):
    options = stream.Options(messages=messages, size=size, seed=3)
    sums = np.zeros(3, np.uint64)
    for seq in range(1, messages + 1):
        sums = stream.added(sums, stream.make(seq, 2, options))
    assert sums.tolist() == stream.expected_sums(2, options).tolist()


@pytest.mark.parametrize("order", [[1, 2, 2, 4], [1, 2, 3], [2, 1, 3, 4], [1, 2, 3, 4, 4]])
def test_a_wrong_sequence_never_passes(order):
    options = stream.Options(messages=4, size=8)
    sums = np.zeros(3, np.uint64)
    for seq in order:
        sums = stream.added(sums, stream.make(seq, 0, options))
    with pytest.raises(ClickException, match="rank 1 has"):
        stream.check(1, {0: sums}, options)


@pytest.mark.parametrize("size, fan", [(2, None), (4, None), (3, "out"), (4, "pair"), (5, "pair")])
def test_every_fan_reaches_its_result(capsys, tmp_path, size, fan):
    options = replace(SMALL, fan=fan, effects=str(tmp_path))
    digest(capsys, size, options)
    found = check_effects(tmp_path, stream.expected_effects(size, options))
    assert found == {"losses": [], "duplicates": [], "ambiguous": []}


def test_batches_change_nothing(capsys):
    assert digest(capsys, 2, replace(SMALL, batch=5)) == digest(capsys, 2, SMALL)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("step", range(1, 2 * SMALL.messages + 1))
def test_a_death_at_any_step_changes_nothing(capsys, tmp_path, victim, step):
    options = replace(SMALL, effects=str(tmp_path))
    whole, _ = digest(capsys, 2, SMALL)
    assert digest(capsys, 2, options, {(victim, step)}) == (whole, 1)
    found = check_effects(tmp_path, stream.expected_effects(2, options))
    # A death between the commit and its line is the one thing that the lines cannot tell.
    after_commit = victim == 1 and step % 2 == 0
    assert (found["losses"], found["duplicates"]) == ([], [])
    assert found["ambiguous"] == ([(1, "numbers", 0, step // 2)] if after_commit else [])


def test_a_size_that_is_not_whole_words_is_refused():
    result = CliRunner().invoke(stream.main, ["--size", "12"])
    assert result.exit_code == 2 and "12 is not a multiple of 8" in result.output
