"""The tables of the plane: codes, capabilities, and the states of a communicator."""

import itertools
import time

import pytest

from ftrt.errors import DeadlineExceeded, InvariantBroken, PeerFailed, UsageError
from ftrt.transport.nccl import states
from ftrt.transport.nccl.capabilities import DIFFERENCES, FEATURES, cuda_mismatch, probe
from ftrt.transport.nccl.codes import MEANINGS, Action, Result, Severity, describe, meaning
from ftrt.transport.nccl.fake import FakeNccl
from ftrt.transport.nccl.states import TRANSITIONS, Communicator, Event, State


def test_every_code_has_a_meaning_and_what_is_unknown_is_fatal():
    assert set(MEANINGS) == set(Result)
    assert [code for code in Result if meaning(code).severity is Severity.CALL] == [
        Result.INVALID_ARGUMENT
    ]
    assert meaning(Result.IN_PROGRESS).action is Action.POLL
    assert meaning(99).severity is Severity.FATAL
    assert "99" in describe(99) and "remote" in describe(6)


def test_a_library_without_revoke_says_what_is_lost():
    there = {feature.symbol for feature in FEATURES.values()} - {"ncclCommRevoke"}
    old = probe("nccl", 22809, there.__contains__)
    assert not old.has("revoke") and old.has("shrink")
    assert len(old.losses()) == 1 and "aborted instead" in old.losses()[0]
    with pytest.raises(KeyError):
        old.has("teleport")


def test_rccl_differs_where_the_table_says_so():
    everything = {feature.symbol for feature in FEATURES.values()}
    nccl, rccl = (probe(name, 1, everything.__contains__) for name in ("nccl", "rccl"))
    for name in DIFFERENCES:
        assert (nccl.rule(name) != rccl.rule(name)) == (
            name in ("finalize_after_revoke", "blocking_may_be_aborted")
        )
    assert rccl.always_nonblocking and not nccl.always_nonblocking
    assert not Communicator(FakeNccl(library="rccl"), "c", blocking=True).blocking


@pytest.mark.parametrize(
    "built_for, driver, fits", [(12, 12040, True), (12, 13000, True), (13, 12080, False)]
)
def test_libraries_and_driver_of_two_cudas(built_for, driver, fits):
    problem = cuda_mismatch(built_for, driver)
    assert (problem is None) == fits
    assert fits or "ftrt[cuda12]" in problem


@pytest.mark.parametrize("state, event", list(itertools.product(State, Event)))
def test_a_transition_is_in_the_table_or_changes_nothing(state, event):
    comm = Communicator(FakeNccl(), "c")
    comm.state = state
    if (state, event) in TRANSITIONS:
        comm._move(event)
        assert comm.state is TRANSITIONS[state, event]
        return
    with pytest.raises(InvariantBroken):
        comm._move(event)
    assert comm.state is state


def test_every_state_can_end_and_no_ended_one_goes_on():
    over = {State.GONE, State.LEFT_BEHIND}
    assert not [key for key in TRANSITIONS if key[0] in over]
    for start in set(State) - over:
        reached, left = {start}, [start]
        while left:
            here = left.pop()
            for (state, _), after in TRANSITIONS.items():
                if state is here and after not in reached:
                    reached.add(after)
                    left.append(after)
        assert State.GONE in reached and State.LEFT_BEHIND in reached


def test_calls_in_the_wrong_state_are_refused():
    comm = Communicator(FakeNccl(), "c")
    for call in (comm.revoke, comm.finish, comm.quiet, lambda: comm.send(0, [], [], 0)):
        with pytest.raises(UsageError, match="init"):
            call()
    assert comm.end()


def test_a_join_ends_by_its_deadline(monkeypatch):
    monkeypatch.setitem(states.DEADLINES_S, State.IN_PROGRESS, 0.05)
    library = FakeNccl()
    comm = Communicator(library, "lonely")
    comm.join(2, library.unique_id(), 0)
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="lonely"):
        while not comm.settled():
            assert time.monotonic() < begin + 5
    assert comm.end(2.0) and comm.state is State.GONE


def test_a_remote_error_is_a_failed_peer():
    comm = Communicator(FakeNccl(), "c")
    comm.state = State.READY
    for code in (Result.REMOTE_ERROR, Result.TIMEOUT, Result.SYSTEM_ERROR, 77):
        with pytest.raises(PeerFailed):
            comm._check(code)
    with pytest.raises(InvariantBroken):
        comm._check(Result.INVALID_ARGUMENT)
