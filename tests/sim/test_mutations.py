"""Every deliberate bug is found."""

import pytest

from ftrt.sim.run import first_violation

from .mutations import MUTATIONS, switched_on


def test_there_are_enough():
    assert len(MUTATIONS) >= 12


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_found_within_two_thousand_seeds(name):
    with switched_on(name):
        tally = first_violation(4, 2000)
    assert tally.violations, f"nobody noticed that {MUTATIONS[name][0]}"


def test_all_is_switched_off_again():
    assert not first_violation(4, 100).violations
