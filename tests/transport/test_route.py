"""Which way large payloads go is decided by what they take."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ftrt.transport import route
from ftrt.transport.layout import RingMap
from ftrt.transport.ring import RecvRing, SendRing

SLOTS, SIZE = 4, 1 << 16


def spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def fresh() -> np.ndarray:
    state = np.zeros(route.ROUTE, np.int64)
    state[route.TRY_FROM], state[route.PAST_FROM] = route.SMALL_BYTES, route.LARGE_BYTES
    return state


def one_trial(state, cost_s: dict[bool, float], size: int = SIZE) -> set[bool]:
    """Go through a whole period; the ways that payloads took after its trial."""
    turn, taken = -1, set()
    while state[route.TURN] > turn:
        turn = int(state[route.TURN])
        past = route.past_caches(state, size, SLOTS)
        in_trial = turn < 2 * (8 * SLOTS + 1)
        if in_trial:
            spend(cost_s[past])
        else:
            taken.add(past)
    return taken


@pytest.mark.parametrize("faster", [False, True])
def test_the_faster_way_is_taken_and_left_again(faster):
    state = fresh()
    assert one_trial(state, {faster: 20e-6, not faster: 100e-6}) == {faster}
    assert one_trial(state, {faster: 100e-6, not faster: 20e-6}) == {not faster}


def test_a_small_gain_changes_nothing():
    assert one_trial(fresh(), {False: 100e-6, True: 97e-6}) == {False}


@pytest.mark.parametrize("size, past", [(route.SMALL_BYTES - 1, False), (route.LARGE_BYTES, True)])
def test_small_and_large_payloads_are_not_tried(size, past):
    state = fresh()
    assert route.past_caches(state, size, SLOTS) is past
    assert state[route.TURN] == 0


@pytest.mark.parametrize("past_from", [0, route.NEVER])
@pytest.mark.parametrize("size", [16 << 10, 65_537, 300_000])
def test_both_ways_carry_the_same_bytes(tmp_path, past_from, size):
    path = tmp_path / "ring"
    made = SendRing.create(path, slots=2, slot_bytes=size, job="j", stream_id=0, source=0, dest=1)
    assert made.slot_bytes >= size
    sender = SendRing(RingMap.open(path), route.NEVER, past_from)
    receiver = RecvRing.attach(path)
    rng = np.random.default_rng(size)
    for seq in range(1, 6):
        array = rng.integers(0, 255, size, np.uint8)
        assert sender.try_send(seq, array, 1)
        frame = receiver.poll()
        np.testing.assert_array_equal(frame.array, array)
        receiver.release(frame.number)
