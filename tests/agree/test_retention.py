"""The two budgets: they never overrun, and they never dead-lock each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrt.agree.marks import Marks
from ftrt.agree.retention import Budget, validate
from ftrt.errors import InvariantBroken, UsageError


def runs_dry(window, retention, batch, stable_every, total):
    """Play a greedy sender and receiver; say whether all of `total` gets through."""
    sent = consumed = stable = 0
    while consumed < total:
        before = (sent, consumed, stable)
        if sent < total and sent - consumed < window and sent - stable < retention:
            sent += 1
        elif sent - consumed >= min(batch, total - consumed):
            for _ in range(min(batch, sent - consumed)):
                consumed += 1
                if consumed - stable >= stable_every:
                    stable = consumed
        if before == (sent, consumed, stable):
            return False
    return True


@given(*[st.integers(1, 9)] * 4)
def test_what_is_accepted_never_stops(window, retention, batch, stable_every):
    try:
        validate(window, retention, batch, stable_every)
    except UsageError:
        return
    assert runs_dry(window, retention, batch, stable_every, total=60)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((3, 9, 4, 1), "window=4"),
        ((4, 3, 1, 4), "retention=4"),
        ((4, 5, 4, 3), "retention=6"),
        ((0, 1, 1, 1), "window=1"),
    ],
)
def test_the_refusal_names_the_smallest_that_works(sizes, named):
    with pytest.raises(UsageError, match=f"smallest that works is {named}$"):
        Budget(*sizes)
    window, retention, batch, stable_every = sizes
    size = int(named.split("=")[1])
    fixed = (size, retention) if named.startswith("window") else (window, size)
    Budget(*fixed, batch, stable_every)
    assert not runs_dry(*sizes, total=60)


def test_one_less_than_the_smallest_stops_for_good():
    for stable_every in range(2, 8):
        assert runs_dry(9, stable_every, 1, stable_every, 60)
        assert not runs_dry(9, stable_every - 1, 1, stable_every, 60)


def test_credit_and_retention_are_freed_separately():
    budget = Budget(window=4, retention=6)
    budget.on_sent(1, 4)
    assert not budget.can_send()
    budget.on_consumed(1, 3)
    assert (budget.credit_left, budget.retention_left) == (3, 2)
    assert budget.can_send(2) and not budget.can_send(3)
    budget.on_stable(1, 2)
    assert budget.retention_left == 4


def test_a_resend_depends_on_who_died():
    budget = Budget(window=9, retention=9)
    budget.on_sent(1, 8)
    budget.on_consumed(1, 4)
    budget.on_consumed(6)
    budget.on_stable(1, 2)
    assert budget.resend_set("survivor") == [(5, 5), (7, 8)]
    assert budget.resend_set("receiver_died") == [(3, 8)]
    assert budget.receiver_replaced() == [(3, 8)]
    assert (budget.credit_left, budget.retention_left) == (3, 3)
    budget.on_sent(3, 6)  # the resend costs nothing again
    assert budget.credit_left == 3


def test_broken_order_changes_nothing():
    budget = Budget(window=2, retention=2)
    budget.on_sent(1, 2)
    before = repr(budget)
    for act in (
        lambda: budget.on_sent(3),
        lambda: budget.on_consumed(2, 2),
        lambda: budget.on_stable(1),
        lambda: budget.resend_set("weather"),
    ):
        with pytest.raises(InvariantBroken):
            act()
    assert repr(budget) == before


@given(st.lists(st.tuples(st.sampled_from("scr"), st.integers(1, 3)), max_size=60))
def test_budgets_are_never_overrun(steps):
    budget = Budget(window=5, retention=8)
    for what, n in steps:
        if what == "s" and budget.can_send(n):
            budget.on_sent(budget.sent.hwm + 1, n)
        elif what == "c":
            budget.on_consumed(
                budget.consumed.hwm + 1, min(n, budget.sent.hwm - budget.consumed.hwm)
            )
        elif what == "r":
            budget.on_stable(budget.stable.hwm + 1, min(n, budget.consumed.hwm - budget.stable.hwm))
        assert 0 <= budget.credit_left <= 5 and 0 <= budget.retention_left <= 8


def test_a_successor_goes_on_from_what_a_record_has():
    budget = Budget(4, 8)
    budget.go_on_from(Marks(500, [(503, 504)]))
    assert (budget.credit_left, budget.retention_left) == (4, 8)
    assert budget.resend_set("receiver_died") == []
    budget.on_sent(501)
    assert budget.resend_set("survivor") == [(501, 501)] and budget.credit_left == 3
    with pytest.raises(InvariantBroken, match="has begun already"):
        budget.go_on_from(Marks(1))
