"""What an agreement costs: it grows with the logarithm of the ranks, for nobody with the ranks."""

import json
import math

import pytest
from click.testing import CliRunner

from ftrt.agree.agreement import AgreedRecord, Announce, Report
from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Told
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.sim.scale import agree, memory_bytes, size_of

SIZES = [4, 16, 64, 256, 1024, 4096]


@pytest.mark.parametrize("ranks", SIZES)
def test_deaths_before_the_start_cost_nothing(ranks):
    for dead in sorted({0, 1, min(8, ranks // 2), -(-ranks // 100)}):
        cost = agree(ranks, dead, seed=ranks)
        within_bounds(cost)


@pytest.mark.parametrize("dead", [0, pytest.param(656, marks=pytest.mark.long)])
def test_the_same_at_the_largest_size(dead):
    within_bounds(agree(65_536, dead))


def within_bounds(cost):
    """The promised bounds, written out once more."""
    levels = math.log2(cost.ranks)
    assert cost.broken == "" and cost.depth <= 2 * levels + 6
    assert cost.messages_max <= 4 * levels + 16
    # A rank handles the marks of its own streams, which no number of ranks makes more of, and what
    # says who is in and who is out: runs of numbers up, the numbers of the dead down.
    assert cost.mark_bytes_max <= 2 * (32 + 2 * (40 + 16 * 4))
    names = 3 * (8 * (levels + 1 + cost.dead) + 4 * cost.dead)
    assert cost.bytes_max <= cost.mark_bytes_max + names + 32 * (4 * levels + 16)


@pytest.mark.parametrize(("ranks", "seeds"), [(64, 10), (512, 10), (16_384, 1)])
@pytest.mark.parametrize("inside", [1, 8])
def test_each_death_inside_costs_a_sweep_at_most(ranks, seeds, inside):
    levels = math.ceil(math.log2(ranks))
    for seed in range(seeds):
        cost = agree(ranks, 0, inside, seed)
        assert cost.broken == ""
        assert cost.depth <= 2 * levels + 6 + inside * (levels + 4)


def test_the_coordinator_fits_into_little_memory():
    assert memory_bytes(65_536) <= 64 << 20


def test_a_message_weighs_what_it_holds():
    key = ("s", 0, 1)
    told = Told(1, EpochId("job", 1, 2), {key: StreamMarks(*key, Marks(3, [(5, 6), (9, 9)]))})
    assert size_of(told, 8) == 32 + 40 + 3 * 16
    assert size_of(Report(1, frozenset((1, 3, 4))), 8) == 32 + 2 * 8
    assert size_of(Announce(1, AgreedRecord(EpochId("job", 1, 2), 0, (0, 1, 2))), 8) == 32 + 5 * 4


def test_too_many_cannot_die():
    with pytest.raises(UsageError, match="nobody would be left"):
        agree(4, 2, 2)


def test_large_sizes_from_the_command():
    arguments = ["sim", "--ranks", "2048", "--seeds", "4", "--json"]
    result = CliRunner().invoke(main, arguments)
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["violations"] == 0 and found["seeds"] == 4
    assert found["depth"] <= found["depth_bound"] == 28
    assert found["messages_per_rank"]["max"] <= found["messages_bound"] == 60
    assert (
        "0 violations" in CliRunner().invoke(main, ["sim", "--ranks", "64", "--seeds", "8"]).stdout
    )
