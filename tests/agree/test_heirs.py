"""Going on with fewer ranks: who inherits, when nobody does, and what is told of the last spare."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrt.agree import events as ev
from ftrt.agree.effects import CreateRecord, End, Fail, Inherit, Note, Promote
from ftrt.agree.epoch import EpochId, Membership, Outcome
from ftrt.agree.events import State
from ftrt.agree.heirs import Heirs, orphans, plan_heirs

from .host import Host, names

TWO = EpochId("job", 1, 2)
# Rank 0 sends to all others, which do the same work.
OUT = [("numbers", 0, dest) for dest in range(1, 5)]


def depleted(host):
    return [e.text for e in host.log if isinstance(e, Note) and e.kind == "depleted"]


def shrunk(ranks=4, spares=0, dead=(3,), **more):
    """Kill these at once; return the settled host."""
    host = Host(ranks, spares, **{"least": 1, "streams": OUT[: ranks - 1], **more})
    for process in dead:
        host.die(process)
    host.settle()
    return host


def test_a_consumer_that_is_left_inherits():
    host = shrunk()
    assert names(host) == ["CloseLedgers", "CreateRecord", "Publish", "Inherit"]
    assert host.recovery.state is State.RUNNING and host.recovery.epoch == TWO
    assert host.inherited[3] in (1, 2) and not host.acting
    record = next(e for e in host.log if isinstance(e, CreateRecord))
    assert record.inherited == ((3, host.inherited[3]),) and record.dead == (3,)
    assert dict(record.members) == {0: 0, 1: 1, 2: 2, 3: host.inherited[3]}


def test_a_job_that_did_not_ask_for_it_does_not_shrink():
    host = shrunk(least=0)
    assert isinstance(host.end, Fail) and "no spare is left" in host.end.reason


def test_spares_come_first():
    host = shrunk(ranks=5, spares=1, dead=(2, 4))
    assert host.acting == {2: 5} and host.inherited[4] in (1, 3)
    order = [type(e) for e in host.log if isinstance(e, (Promote, Inherit))]
    assert order == [Promote, Inherit]


def test_an_heir_that_dies_leaves_all_its_ranks():
    host = shrunk()
    heir = host.inherited[3]
    host.die(heir)
    host.settle()
    (other,) = {1, 2} - {heir}
    assert dict(host.recovery.membership.members) == {0: 0, 1: other, 2: other, 3: other}
    assert host.recovery.membership.ranks_of(other) == (1, 2, 3)


def test_a_death_during_the_shrink_counts_in_the_next_epoch():
    host = Host(5, least=1, streams=OUT)
    host.die(4)
    host.step()  # the record that gives rank 4 to an heir has been asked for
    heir = host.recovery.now.decision.inherited[0][1]
    host.die(heir)
    host.settle()
    members = dict(host.recovery.membership.members)
    assert host.recovery.epoch.counter == 3 and heir not in members.values()
    assert {members[4], members[heir]} <= {1, 2, 3} - {heir}


def test_a_death_while_the_ledgers_close_joins_the_decision():
    host = Host(5, least=1, streams=OUT)
    host.die(4)
    host.die(3)
    host.settle()
    assert host.recovery.epoch == TWO and set(host.inherited) == {3, 4}
    assert set(host.inherited.values()) <= {1, 2}


def test_the_heir_finishes_for_all_its_ranks():
    host = shrunk()
    for process in (0, 1):
        host.tell(ev.ProcessFinished(process))
    assert host.end is None
    host.tell(ev.ProcessFinished(2))
    assert isinstance(host.end, End)


def test_who_is_done_inherits_nothing():
    host = Host(4, least=1, streams=OUT[:3])
    host.tell(ev.ProcessFinished(1))
    host.die(3)
    host.settle()
    assert host.inherited == {3: 2}


@pytest.mark.parametrize(
    ("why", "says", "more"),
    [
        ("nobody is willing", "no rank that is left takes over", {"willing": ()}),
        ("too few", "2 would be left, fewer than the 3 of --min-ranks", {"ranks": 3, "least": 3}),
        ("the sender", "rank 0 has no heir: none that is left sends", {"dead": (0,)}),
        ("unknown", "nothing is known of rank 3's streams", {"streams": OUT[:1]}),
        (
            "all at the other end",
            "at the other end of its",
            {"streams": [("s", 3, 1), ("s", 1, 3)]},
        ),
        (
            "policy: a dead one",
            "to rank 2, which is dead",
            {"dead": (2, 3), "policy": {2: 1, 3: 2}},
        ),
        ("policy: no such rank", "names rank 9, which there is not", {"policy": {3: 9}}),
        ("policy: none", "names none for rank 3", {"policy": {2: 1}}),
    ],
)
def test_what_cannot_be_inherited_is_a_named_end(why, says, more):
    host = shrunk(**{"dead": (2,) if why == "too few" else (3,), **more})
    assert isinstance(host.end, Fail) and says in host.end.reason, host.end
    assert "--spares" in host.end.reason and "--restarts 1" in host.end.reason
    assert host.recovery.epoch.counter == 1 and 2 not in host.records


def test_a_policy_that_gave_no_answer_is_refused():
    heirs = Heirs(frozenset({1, 2}), None, "raised ValueError: no")
    plan = plan_heirs(Membership.initial(4), {3}, (), heirs, OUT[:3], 1)
    assert plan.outcome is Outcome.FAILED
    assert plan.reason.startswith("rank 3 died and the policy for heirs raised ValueError: no;")


def test_a_policy_may_choose_whom_the_default_would_not():
    host = shrunk(dead=(0,), policy={0: 2})
    assert host.inherited == {0: 2}


def test_another_candidates_death_moves_nothing_else():
    """Rendezvous hashing: an heir is the best of those that live, whoever else is there."""
    streams = [("numbers", 0, dest) for dest in range(1, 40)]
    heirs = Heirs(frozenset(range(40)))

    def heir_of(rank, dead):
        plan = plan_heirs(Membership.initial(40), {rank, *dead}, (), heirs, streams, 1)
        return dict(plan.inherited)[rank]

    chosen = {rank: heir_of(rank, ()) for rank in range(1, 40)}
    assert len(set(chosen.values())) > 20  # spread over many, not all to one
    for rank, heir in chosen.items():
        for dead in range(1, 40):
            if dead not in (rank, heir):
                assert heir_of(rank, {dead}) == heir
        assert heir_of(rank, {heir}) != heir


def test_the_last_spare_is_told_of_before_the_next_death():
    host = Host(3, spares=2, least=1, streams=OUT[:2])
    host.die(1)
    host.settle()
    assert not depleted(host)
    host.die(2)
    host.settle()
    (text,) = depleted(host)
    assert "--min-ranks" in text
    host.die(0)
    host.settle()
    assert len(depleted(host)) == 1


@pytest.mark.parametrize(
    ("more", "then"), [({}, "ends this attempt"), ({"restarts": 1}, "begins again from the ledger")]
)
def test_the_last_spare_that_dies_or_leaves_is_told_of_too(more, then):
    for event in (ev.ProcessDied(2, "mutex"), ev.ProcessFinished(2)):
        host = Host(2, spares=1, **more)
        host.tell(event)
        (text,) = depleted(host)
        assert text.endswith(then) and host.recovery.epoch.counter == 1


def test_a_job_without_spares_is_told_nothing():
    host = shrunk()
    assert not depleted(host)


def test_somebody_elses_record_may_let_ours_inherit():
    host = Host(3, least=1, streams=OUT[:2])
    host.die(2)
    host.inbox.clear()
    host.records[2] = Membership(((0, 0), (1, 1), (2, 1)))
    host.tell(ev.RecordFound(TWO, host.records[2].members))
    host.settle()
    assert host.inherited == {2: 1} and not host.acting


def test_a_restart_gives_every_rank_a_process_of_its_own_again():
    host = shrunk(ranks=3, dead=(2,), restarts=1)
    assert host.recovery.membership.ranks_of(1) == (1, 2)
    host.tell(ev.Restarted(2, Membership(((0, 10), (1, 11), (2, 12)))))
    host.settle()
    assert host.acting == {0: 10, 1: 11, 2: 12}


@pytest.mark.parametrize("ranks", range(2, 6))
@pytest.mark.parametrize("spares", range(3))
def test_every_set_of_dead_has_its_outcome(ranks, spares):
    """One sender, the others alike: shrunk as long as the sender and one consumer act."""
    membership, heirs = Membership.initial(ranks, spares), Heirs(frozenset(range(ranks + spares)))
    streams = [("numbers", 0, dest) for dest in range(1, ranks)]
    for size in range(ranks + spares + 1):
        for dead in combinations(range(ranks + spares), size):
            left = orphans(membership, dead)
            if not left:
                continue
            plan = plan_heirs(membership, dead, (), heirs, streams, 1)
            alive = set(range(ranks)) - set(dead)
            possible = 0 not in left and alive - {0}
            assert (plan.outcome is Outcome.SHRUNK) == bool(possible), (dead, plan)
            assert not possible or not {p for _, p in plan.members} & set(dead)
            assert not possible or 0 not in {p for _, p in plan.inherited}


@given(
    st.integers(2, 6),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 14)), max_size=8),
    st.integers(1, 3),
)
def test_any_deaths_at_any_time_come_to_an_end(ranks, spares, deaths, least):
    streams = [("numbers", 0, dest) for dest in range(1, ranks)]
    host = Host(ranks, spares, least=min(least, ranks), streams=streams)
    for step in range(40):
        for victim, moment in deaths:
            if moment == step and victim < ranks + spares and host.end is None:
                host.die(victim)
        if not host.step() and step > 14:
            break
    host.settle()
    dead = {v for v, _ in deaths if v < ranks + spares}
    if host.end is None:
        acting = {p for _, p in host.recovery.membership.members}
        assert host.recovery.state is State.RUNNING and not acting & dead
        assert len(acting) >= min(least, ranks) and set(host.recovery.membership.ranks) == set(
            range(ranks)
        )
    else:
        assert "--spares" in host.end.reason
