"""What an agreement costs: it grows with the logarithm of the ranks, for nobody with the ranks."""

import json
import math

import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.sim.scale import agree, memory_bytes

SIZES = [4, 16, 64, 256, 1024, 4096]


@pytest.mark.parametrize("ranks", SIZES)
def test_deaths_before_the_start_cost_nothing(ranks):
    for dead in sorted({0, 1, min(8, ranks // 2), -(-ranks // 100)}):
        cost = agree(ranks, dead, seed=ranks)
        levels = math.log2(ranks)
        assert cost.broken == "" and cost.depth <= 2 * levels + 6
        assert cost.messages_max <= 4 * levels + 16
        # A rank handles the marks of its own streams, and what says who is in and who is out.
        assert cost.bytes_max <= cost.mark_bytes_max + 12 * (32 + 16 * (levels + 1) + 4 * dead)


@pytest.mark.parametrize("ranks", [64, 512])
@pytest.mark.parametrize("inside", [1, 8])
def test_each_death_inside_costs_a_sweep_at_most(ranks, inside):
    levels = math.ceil(math.log2(ranks))
    for seed in range(10):
        cost = agree(ranks, 0, inside, seed)
        assert cost.broken == ""
        assert cost.depth <= 2 * levels + 6 + inside * (levels + 4)


def test_the_coordinator_fits_into_little_memory():
    assert memory_bytes(16_384) <= 16 << 20


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
