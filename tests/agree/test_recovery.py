"""The recovery's scenarios, every pair of its table, and deaths at every step."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrt.agree import events as ev
from ftrt.agree.effects import CreateRecord, End, Fail
from ftrt.agree.epoch import EpochId, Membership, Outcome, plan_members
from ftrt.agree.events import EVENTS, State
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.agree.recovery import Recovery
from ftrt.agree.steps import HANDLERS
from ftrt.agree.tables import TRANSITIONS, markdown, mermaid
from ftrt.errors import InvariantBroken

from .host import Host, names

ONE, TWO, THREE = (EpochId("job", 1, counter) for counter in (1, 2, 3))
NEW = Membership(((0, 10), (1, 11), (2, 12)), (13,))


def at(state):
    """Bring a host of three ranks and two spares into a state."""
    host = Host(3, spares=0 if state is State.FAILED else 2)
    if state is State.ENDED:
        for rank in range(3):
            host.tell(ev.ProcessFinished(rank))
    elif state is not State.RUNNING:
        host.die(1)
        order = [State.CLOSING, State.RECORDING, State.PUBLISHING]
        for _ in range(1 if state is State.FAILED else order.index(state)):
            host.step()
    assert host.recovery.state is state
    return host


def sample(event, state):
    """Make a plausible event of a type for a state."""
    return {
        ev.ProcessDied: ev.ProcessDied(2, "mutex"),
        ev.ProcessFinished: ev.ProcessFinished(2),
        ev.Suspected: ev.Suspected(2),
        ev.Cleared: ev.Cleared(2),
        ev.CloseAsked: ev.CloseAsked(TWO if state is State.PUBLISHING else ONE),
        ev.LedgersClosed: ev.LedgersClosed(
            EpochId("job", 1, 0) if state is State.RUNNING else ONE, {}
        ),
        ev.RecordCreated: ev.RecordCreated(TWO),
        ev.RecordFound: ev.RecordFound(TWO, ((0, 0), (1, 3), (2, 2)), (4,)),
        ev.RecordFailed: ev.RecordFailed(TWO, "the disk is full"),
        ev.EpochPublished: ev.EpochPublished(TWO),
        ev.Restarted: ev.Restarted(2, NEW),
    }[event]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS)
def test_every_pair_of_the_table(state, event):
    recovery = at(state).recovery
    before, story = recovery.now, recovery.story
    row = TRANSITIONS.get((state, event))
    if row is None:
        with pytest.raises(InvariantBroken, match=f"{event.__name__}.*{state.name}.*Story: "):
            recovery.handle(sample(event, state))
        assert recovery.now is before and recovery.story is story
    else:
        recovery.handle(sample(event, state))
        assert recovery.state in row[1]


def test_the_table_names_each_handler_and_each_handler_is_used():
    assert {name for name, _ in TRANSITIONS.values()} == set(HANDLERS)


def test_the_drawings_come_from_the_table():
    assert "RECORDING --> PUBLISHING: RecordCreated, RecordFound" in mermaid()
    assert "| `RecordFailed` | – | – | FAILED | – | – | – |" in markdown()


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.RUNNING, ev.ProcessDied(99, "pidfd")),
        (State.RUNNING, ev.ProcessFinished(99)),
        (State.RUNNING, ev.LedgersClosed(ONE)),
        (State.RUNNING, ev.RecordFound(THREE, ((0, 0),))),
        (State.RUNNING, ev.Restarted(1, NEW)),
        (State.RUNNING, ev.Restarted(2, Membership.initial(2))),
        (State.CLOSING, ev.LedgersClosed(TWO)),
        (State.RUNNING, ev.CloseAsked(TWO)),
        (State.RECORDING, ev.RecordCreated(THREE)),
        (State.RECORDING, ev.RecordFailed(ONE, "full")),
        (State.PUBLISHING, ev.EpochPublished(ONE)),
        (State.PUBLISHING, ev.LedgersClosed(TWO)),
    ],
)
def test_a_wrong_content_is_refused_too(state, event):
    recovery = at(state).recovery
    before = recovery.now
    with pytest.raises(InvariantBroken, match="Story"):
        recovery.handle(event)
    assert recovery.now is before


def test_the_story_is_bounded_and_told():
    host = Host(2)
    for _ in range(50):
        host.tell(ev.Suspected(1))
        host.tell(ev.Cleared(1))
    assert len(host.recovery.story) == 32
    with pytest.raises(InvariantBroken, match=r"Cleared\(process=1\) -> RUNNING$"):
        host.tell(ev.RecordCreated(TWO))


def test_a_hot_spare_takes_over():
    host = Host(3, spares=2)
    host.die(1, by="mutex")
    host.settle()
    assert names(host) == ["Kill", "CloseLedgers", "CreateRecord", "Publish", "Promote"]
    assert host.acting == {1: 3} and host.killed == [1]
    assert host.recovery.membership == Membership(((0, 0), (1, 3), (2, 2)), (4,))
    assert host.recovery.state is State.RUNNING and host.recovery.epoch == TWO


def test_a_death_seen_twice_is_one_death():
    host = Host(2, spares=1)
    host.die(0, by="mutex")
    host.die(0, by="evicted")
    assert host.killed == [0] and names(host) == ["Kill", "CloseLedgers"]


def test_a_process_that_is_surely_gone_is_not_killed():
    host = Host(2, spares=1)
    host.die(0, by="pidfd")
    assert host.killed == []


def test_marks_of_all_epochs_are_merged_into_the_record():
    host = Host(2, spares=2)
    key = ("s", 0, 1)
    host.marks = {key: StreamMarks(*key, Marks(5), sent=8)}
    host.die(1)
    host.settle()
    host.marks = {key: StreamMarks(*key, Marks(0, [(7, 7)]), sent=9)}
    host.die(2)
    host.settle()
    records = [effect for effect in host.log if isinstance(effect, CreateRecord)]
    assert records[-1].marks[key] == StreamMarks(*key, Marks(5, [(7, 7)]), sent=9)
    assert records[0].marks[key].marks == Marks(5)
    assert host.recovery.marks == records[-1].marks


def test_a_spare_dies_unused():
    host = Host(2, spares=2)
    host.die(2)
    assert names(host) == [] and host.recovery.state is State.RUNNING
    host.die(0)
    host.settle()
    record = next(effect for effect in host.log if isinstance(effect, CreateRecord))
    assert (record.spares, record.dead, record.promotions) == ((), (0, 2), ((0, 3),))


def test_a_finished_rank_needs_no_replacement():
    host = Host(3)
    host.tell(ev.ProcessFinished(1))
    host.die(1, by="mutex")
    assert host.log == [] and host.recovery.state is State.RUNNING
    host.tell(ev.ProcessFinished(0))
    host.tell(ev.ProcessFinished(2))
    assert isinstance(host.end, End)


def test_a_finish_report_that_comes_after_the_death_still_counts():
    host = Host(2)
    host.die(1, by="mutex")
    host.tell(ev.ProcessFinished(1))
    host.settle()
    assert host.recovery.state is State.RUNNING and host.recovery.epoch == TWO


def test_the_end_waits_for_a_recovery():
    host = Host(2, spares=1)
    host.die(1)
    host.tell(ev.ProcessFinished(0))
    host.settle()
    assert host.end is None and host.acting == {1: 2}
    host.tell(ev.ProcessFinished(2))
    assert isinstance(host.end, End)


def test_the_last_rank_may_finish_while_the_ledgers_close():
    host = Host(2)
    host.die(1, by="mutex")
    host.tell(ev.ProcessFinished(1))
    host.tell(ev.ProcessFinished(0))
    assert isinstance(host.end, End) and host.end.epoch == ONE


def test_a_suspicion_changes_no_epoch():
    host = Host(2, spares=1)
    host.tell(ev.Suspected(1))
    host.tell(ev.Suspected(1))
    host.tell(ev.Cleared(1))
    assert names(host) == [] and [n.kind for n in host.log] == ["suspected", "cleared"]


def test_without_spares_the_reason_says_what_to_type():
    host = Host(4, spares=1)
    for rank in (3, 1):
        host.die(rank)
    host.settle()
    assert isinstance(host.end, Fail) and not host.end.restart
    assert host.end.reason == (
        "ranks 1, 3 of 4 died and 1 spare left; start with at least 1 more in --spares, "
        "or with --restarts 1 to go on from the ledger"
    )


def test_a_record_that_cannot_be_written_is_a_named_end():
    host = at(State.RECORDING)
    host.inbox.clear()
    host.tell(ev.RecordFailed(TWO, "no space left on device"))
    assert "no space left" in host.end.reason and host.recovery.epoch == ONE


def test_a_restart_goes_on_with_all_new_processes():
    host = Host(3, restarts=1)
    host.tell(ev.ProcessFinished(0))
    host.die(1)
    host.settle()
    assert host.end.restart
    host.end = None
    host.tell(ev.Restarted(2, NEW))
    host.die(11)
    host.settle()
    assert host.recovery.epoch == EpochId("job", 2, 2)
    assert host.recovery.membership == Membership(((0, 10), (1, 13), (2, 12)))
    assert host.acting == {0: 10, 1: 13, 2: 12}
    host.tell(ev.ProcessFinished(13))
    host.tell(ev.ProcessFinished(12))
    assert host.end is None  # rank 0 runs again, whatever it had finished before
    host.die(10)
    host.settle()
    assert isinstance(host.end, Fail) and not host.end.restart


def test_somebody_elses_record_is_adopted():
    host = at(State.RECORDING)
    host.inbox.clear()
    host.records[2] = Membership(((0, 0), (1, 4), (2, 2)), (3,))
    host.tell(ev.RecordFound(TWO, host.records[2].members, (3,)))
    host.settle()
    assert host.recovery.membership == host.records[2] and host.acting == {1: 4}


def test_the_marks_of_an_adopted_record_win():
    host = at(State.RECORDING)
    host.inbox.clear()
    key = ("s", 0, 1)
    theirs = {key: StreamMarks(*key, Marks(3))}
    host.records[2] = Membership(((0, 0), (1, 3), (2, 2)))
    host.tell(ev.RecordFound(TWO, host.records[2].members, (), theirs))
    assert host.recovery.marks == theirs


def test_an_adopted_record_with_a_dead_member_is_succeeded_at_once():
    host = at(State.RECORDING)
    host.inbox.clear()
    host.records[2] = Membership(((0, 0), (1, 1), (2, 2)), (3, 4))
    host.tell(ev.RecordFound(TWO, host.records[2].members, (3, 4)))
    host.settle()
    assert host.recovery.epoch == THREE and host.acting == {1: 3}


def test_an_adopted_record_whose_members_all_died_is_succeeded_by_its_spares():
    host = at(State.RECORDING)
    host.inbox.clear()
    for process in (0, 2):
        host.tell(ev.ProcessDied(process, "pidfd"))
    theirs = Membership(((0, 0), (1, 1), (2, 2)), (3, 4))
    host.recovery.handle(ev.RecordFound(TWO, theirs.members, theirs.spares))
    assert host.recovery.state is State.PUBLISHING and host.recovery.epoch == TWO


def test_a_rank_that_a_record_gives_to_another_process_is_not_done():
    host = at(State.CLOSING)
    host.tell(ev.ProcessFinished(2))
    assert host.recovery.now.finished == {2}
    kept = Membership(((0, 0), (1, 3), (2, 2)), (4,))
    host.recovery.handle(ev.RecordFound(TWO, kept.members, kept.spares))
    assert host.recovery.now.finished == {2}
    host = at(State.CLOSING)
    host.tell(ev.ProcessFinished(2))
    moved = Membership(((0, 0), (1, 3), (2, 4)))
    host.recovery.handle(ev.RecordFound(TWO, moved.members))
    assert host.recovery.now.finished == frozenset()


def test_who_is_not_in_the_record_is_ended():
    host = at(State.RUNNING)
    host.records[2] = Membership(((0, 0), (1, 3), (2, 2)))
    host.tell(ev.RecordFound(TWO, host.records[2].members))
    assert host.killed == [1] and names(host)[0] == "CloseLedgers"
    host.settle()
    host.die(1)  # as was to be expected
    host.die(4)  # a spare that the record does not list
    assert host.recovery.state is State.RUNNING and host.recovery.epoch == TWO


@pytest.mark.parametrize(
    "found",
    [
        ev.RecordFound(TWO, ((0, 20), (1, 21), (2, 22))),
        ev.RecordFound(EpochId("job", 2, 2), ((0, 0), (1, 1), (2, 2))),
    ],
    ids=["none of ours", "a later attempt"],
)
def test_a_host_that_is_in_no_epoch_is_fenced(found):
    host = at(State.RECORDING)
    host.inbox.clear()
    host.tell(found)
    assert host.end.fenced and not host.end.restart


def test_a_restart_succeeds_what_the_attempt_before_still_made():
    host = Host(3, restarts=1)
    host.tell(ev.Restarted(2, NEW))
    host.step()
    host.records[2] = Membership.initial(3)
    host.inbox.clear()
    host.tell(ev.RecordFound(TWO, host.records[2].members))
    host.settle()
    assert host.recovery.epoch == EpochId("job", 2, 3) and host.recovery.membership == NEW


def test_another_host_may_ask_for_a_successor():
    host = Host(3, spares=1)
    host.tell(ev.CloseAsked(ONE))
    assert host.recovery.state is State.CLOSING
    host.settle()
    assert names(host) == ["CloseLedgers", "CreateRecord", "Publish"]
    host.tell(ev.CloseAsked(ONE))  # late
    assert host.recovery.state is State.RUNNING and host.recovery.epoch == TWO


def test_a_second_answer_to_an_old_closing_is_behind_us():
    host = Host(3, spares=2)
    host.die(1)
    host.settle()
    host.die(0)
    host.tell(ev.LedgersClosed(ONE))
    assert host.recovery.state is State.CLOSING
    host.settle()
    assert host.recovery.epoch == THREE


def test_who_is_left_out_is_dead_once_our_record_exists():
    host = at(State.CLOSING)
    host.inbox.clear()
    host.tell(ev.LedgersClosed(ONE, {}, left_out=(2, 4)))
    assert host.end.reason.startswith("ranks 1, 2 of 3 died and 1 spare left")
    host = at(State.CLOSING)
    host.inbox.clear()
    host.tell(ev.LedgersClosed(ONE, {}, left_out=(4,)))
    record = host.log[-1]
    assert (record.dead, record.spares) == ((1, 4), ()) and host.recovery.now.dead == {1}
    host.settle()
    assert host.recovery.now.dead == {1, 4} and host.acting == {1: 3}


def test_who_is_being_left_out_cannot_finish_any_more():
    host = Host(2, spares=1)
    host.tell(ev.CloseAsked(ONE))
    host.inbox.clear()
    host.tell(ev.LedgersClosed(ONE, {}, left_out=(1,)))
    host.tell(ev.ProcessFinished(1))  # its last commits came after its ledger was read
    host.settle()
    assert host.acting == {1: 2} and host.recovery.now.finished == set()
    host.tell(ev.ProcessFinished(0))
    assert host.end is None  # rank 1 has work to do
    host.tell(ev.ProcessFinished(2))
    assert isinstance(host.end, End)


def test_who_was_to_be_left_out_lives_on_in_somebody_elses_record():
    host = Host(3, spares=2)
    host.tell(ev.CloseAsked(ONE))
    host.inbox.clear()
    host.tell(ev.LedgersClosed(ONE, {}, left_out=(2,)))
    host.inbox.clear()
    host.records[2] = Membership.initial(3, 2)
    host.tell(ev.RecordFound(TWO, host.records[2].members, host.records[2].spares))
    host.settle()
    assert host.recovery.state is State.RUNNING and host.recovery.now.dead == set()
    host.die(0)
    host.settle()
    record = [effect for effect in host.log if isinstance(effect, CreateRecord)][-1]
    assert record.dead == (0,)


def test_a_death_that_no_record_named_is_named_by_the_next():
    host = at(State.RECORDING)
    host.inbox.clear()
    host.records[2] = Membership(((0, 0), (1, 3), (2, 2)), (4,))  # its maker named no one dead
    host.tell(ev.RecordFound(TWO, host.records[2].members, (4,)))
    host.settle()
    host.die(2)
    host.settle()
    record = [effect for effect in host.log if isinstance(effect, CreateRecord)][-1]
    assert record.epoch == THREE and record.dead == (1, 2)


def outcome(ranks, spares, victims, moments):
    """Kill `victims` at these steps of the recovery; return the settled host."""
    host = Host(ranks, spares)
    for step in range(40):
        for victim, moment in zip(victims, moments, strict=True):
            if moment == step and host.end is None:
                host.die(victim)
        if not host.step() and step > max(moments, default=0):
            break
    host.settle()
    return host


@pytest.mark.parametrize("ranks", range(1, 6))
@pytest.mark.parametrize("spares", range(4))
def test_every_set_of_dead_has_its_outcome(ranks, spares):
    processes = range(ranks + spares)
    for size in range(ranks + spares + 1):
        for dead in combinations(processes, size):
            plan = plan_members(Membership.initial(ranks, spares), dead)
            lost = sum(process < ranks for process in dead)
            enough = lost <= spares - (size - lost)
            assert plan.outcome is (Outcome.CONTINUED if enough else Outcome.FAILED)
            assert not enough or not {p for _, p in plan.members} & set(dead)


def test_deaths_at_every_step():
    ranks, spares = 3, 2
    for victims in permutations(range(ranks + spares), 2):
        for first in range(5):
            for second in range(first, 10):
                host = outcome(ranks, spares, victims, (first, second))
                check_settled(host, set(victims))
                assert host.recovery.state is State.RUNNING


def check_settled(host, dead):
    """All ranks have a living process, or there are fewer spares than lost ranks."""
    recovery = host.recovery
    assert recovery.state in (State.RUNNING, State.FAILED)
    alive = {p for _, p in recovery.membership.members} - dead
    if recovery.state is State.RUNNING:
        assert len(alive) == len(recovery.membership.members)
        assert recovery.epoch.counter == max(host.records) == max(host.published)
    else:
        assert len(host.records[1].processes - dead) < len(host.records[1].members)


@given(
    st.integers(1, 5),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), max_size=6),
)
def test_any_deaths_at_any_time_come_to_an_end(ranks, spares, deaths):
    deaths = [(victim, moment) for victim, moment in deaths if victim < ranks + spares]
    host = outcome(ranks, spares, [v for v, _ in deaths], [m for _, m in deaths])
    if host.recovery.state is State.RUNNING:
        check_settled(host, {v for v, _ in deaths})
    else:
        check_settled(host, {v for v, _ in deaths})
        assert "--spares" in host.end.reason


def test_the_recovery_starts_from_what_a_record_says():
    marks = {("s", 0, 1): StreamMarks("s", 0, 1, Marks(4))}
    recovery = Recovery(TWO, Membership.initial(2), marks, finished=[0])
    recovery.handle(ev.ProcessDied(1, "exit"))
    assert recovery.state is State.CLOSING and recovery.marks == marks
    with pytest.raises(InvariantBroken, match="listed twice"):
        Membership(((0, 1), (0, 2)))
    with pytest.raises(InvariantBroken, match="listed twice"):
        Membership(((0, 1), (1, 2)), (2,))
