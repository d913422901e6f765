"""Every deliberate bug is found, by the seed and the checker that the page of results names."""

import signal

import pytest

from ftrt.sim.plan import make_plan
from ftrt.sim.run import first_violation, run_one

from .mutation_table import MOST, RANKS, rows
from .mutations import MUTATIONS, switched_on

ROWS = rows()


def test_there_are_enough_and_half_were_chosen_by_others():
    assert {text for text, _, _ in MUTATIONS.values()} == set(ROWS)
    assert len(MUTATIONS) == len(ROWS) >= 12
    others = [row for row in ROWS.values() if row[0] != "its author"]
    assert 2 * len(others) >= len(ROWS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_found_where_the_page_says(name):
    text, _, chosen_by = MUTATIONS[name]
    said_by, seeds, checker = ROWS[text]
    assert said_by == chosen_by and seeds <= MOST
    with switched_on(name):
        _, violation = run_one(make_plan(RANKS, seeds - 1))
    assert violation is not None and violation.checker == checker, (
        f"seed {seeds - 1} does not show that {text}: {violation}; if the simulator has changed, "
        "type `python -m tests.sim.mutation_table`"
    )


@pytest.mark.timeout(60)
def test_all_is_switched_off_again():
    # A runtime of this process may take the signal that ends a pool; its workers must not.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not first_violation(RANKS, 100).violations
    finally:
        signal.signal(signal.SIGTERM, before)
