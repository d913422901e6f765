"""How communicators, their graphs, registrations and memory end, and what is left afterwards."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from test_channel import Ends, on_device, until

from ftrt.errors import PeerFailed, RecoveryImpossible
from ftrt.transport.factory import Link
from ftrt.transport.nccl import fake, fake_device
from ftrt.transport.nccl.codes import Result
from ftrt.transport.nccl.fake import FakeNccl, UseAfterFree
from ftrt.transport.nccl.fake_device import FakeDevice
from ftrt.transport.nccl.plane import NcclPlane, can_register
from ftrt.transport.nccl.slots import SlotMemory
from ftrt.transport.nccl.states import Communicator, State


@pytest.fixture(autouse=True)
def nothing_that_a_real_library_would_not_survive():
    fake.misuses.clear()
    yield
    assert fake.misuses == []


def alone() -> tuple[FakeNccl, Communicator]:
    """A communicator of one rank, ready."""
    library = FakeNccl()
    comm = Communicator(library, "c")
    comm.join(1, library.unique_id(), 0)
    until(comm.settled)
    return library, comm


def test_no_call_reaches_a_communicator_whose_end_was_asked_for():
    _, comm = alone()
    comm.revoke()
    with pytest.raises(PeerFailed, match="end was asked for"):
        comm.send(0, [], [], 0)
    assert comm.end()


def test_destroy_waits_for_a_thread_inside_a_call_and_leaves_behind_what_it_hangs_in():
    library, comm = alone()
    inside, leave = threading.Event(), threading.Event()
    library.send = lambda *_: inside.set() or leave.wait(10) and Result.SUCCESS
    thread = threading.Thread(target=comm.send, args=(0, [], [], 0))
    thread.start()
    inside.wait(5)
    comm.revoke()
    assert not comm.end(0.2)
    assert comm.state is State.LEFT_BEHIND and comm.occupied
    leave.set()
    thread.join(5)
    assert not comm.occupied


def test_only_one_thread_at_a_time_asks_for_the_state():
    """With NCCL 2.32 two of them, one in an end and one in a call, ended with SIGSEGV."""
    library, comm = alone()
    real, stop = library.async_error, threading.Event()

    def slow(handle):
        code, state = real(handle)
        time.sleep(0.001)  # inside, as the thread that joins the group's
        return code, state

    def guarded(handle):
        assert entered.acquire(blocking=False), "two threads are inside"
        try:
            return slow(handle)
        finally:
            entered.release()

    entered, broken = threading.Lock(), []
    library.async_error = guarded

    def ask():
        while not stop.is_set():
            try:
                comm.check()
            except AssertionError as error:
                broken.append(error)
            except PeerFailed:
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    comm.revoke()
    assert comm.end()
    stop.set()
    for thread in threads:
        thread.join(5)
    assert broken == []


def test_a_join_that_hangs_is_left_behind_and_what_it_brings_later_is_aborted():
    library, come, aborted = FakeNccl(), threading.Event(), []
    comm = Communicator(library, "hangs", blocking=True)
    library._meet = lambda *_: come.wait(10)
    library.abort = aborted.append
    identity = library.unique_id()
    thread = threading.Thread(target=pytest.raises, args=(PeerFailed, comm.join, 2, identity, 0))
    thread.start()
    until(lambda: comm.state is State.IN_PROGRESS)
    assert not comm.end(0.2) and comm.state is State.LEFT_BEHIND
    come.set()
    thread.join(5)
    assert len(aborted) == 1


def test_the_fake_keeps_to_the_rules_of_registration():
    library, comm = alone()
    address = library.mem_alloc(4096)
    assert comm.register(address, 4096)
    assert library.mem_free(address) == Result.INVALID_ARGUMENT
    assert fake.misuses.pop().startswith("memory was freed while it was registered")
    handle = comm.handle
    assert library.deregister(handle, 99) == Result.INVALID_USAGE
    assert fake.misuses.pop() == "what was deregistered was not registered"
    comm.revoke()
    until(comm.quiet)
    assert comm.end()
    with pytest.raises(UseAfterFree):
        library.register(handle, address, 4096)
    fake.misuses.clear()
    assert library.mem_free(address) == Result.SUCCESS


def test_what_was_left_registered_at_a_destroy_is_counted():
    library, comm = alone()
    address = library.mem_alloc(64)
    comm.register(address, 64)
    comm._registered.clear()
    comm.revoke()
    assert comm.end()
    assert fake.misuses.pop() == "1 registrations were left to a destroy"
    library.mem_free(address)


@pytest.mark.parametrize(
    "without, how, expected",
    [
        ((), "buffer", "buffer"),
        ((), "window", "window"),
        (("windows",), "window", "buffer"),
        (("mem_alloc",), "buffer", ""),
        (("registration",), "window", ""),
    ],
)
def test_registration_goes_as_far_as_the_library(without, how, expected):
    assert can_register(FakeNccl(without=frozenset(without)), how) == expected


@pytest.mark.parametrize("how", ["buffer", "window", "off"])
def test_slots_are_registered_once_and_taken_back(tmp_path, monkeypatch, how):
    calls = []
    for name in ("register", "register_window", "deregister"):
        plain = getattr(FakeNccl, name)
        monkeypatch.setattr(
            FakeNccl, name, lambda *a, _n=name, _p=plain: calls.append(_n) or _p(*a)
        )
    monkeypatch.setattr(FakeNccl, "deregister_window", FakeNccl.deregister)
    both = Ends(tmp_path, register=how)
    until(both.planes[0].ready)
    for seq in range(1, 20):
        until(lambda seq=seq: both.send.try_send(seq, on_device(np.arange(8)), 1))
        both.recv.release(both.next().number)
    pairs = {p.name for plane in both.planes for p in plane.pairs.everything()}
    both.close()
    assert calls.count("register_window") == (2 * len(pairs) if how == "window" else 0)
    assert calls.count("deregister") == calls.count("register")
    assert calls.count("register") == (0 if how == "off" else 2 * len(pairs))


def test_slots_are_given_back_only_when_no_kernel_is_at_work_in_them():
    device, buried = FakeDevice(), []
    memory = SlotMemory(device, 4, 64, bury=buried.append)
    gate = threading.Event()
    memory.streams[1].put(lambda: gate.wait(10))  # a check that has not run yet
    del memory
    (remains,) = buried
    assert not remains.is_quiet()
    gate.set()
    until(remains.is_quiet)
    remains.free()


def test_a_graph_is_not_launched_once_its_pair_is_being_ended(tmp_path):
    both = Ends(tmp_path)
    pair = both.send.pair
    pair.replay("key", both.send._sending, lambda: None)
    assert pair.graphs == 1
    pair.stop()
    assert pair.graphs == 0
    with pytest.raises(PeerFailed, match="being ended"):
        pair.replay("key", both.send._sending, lambda: None)
    both.close()


def test_a_pair_that_one_end_gave_up_is_not_taken_at_the_other(tmp_path):
    both = Ends(tmp_path)
    until(lambda: all(plane.ready() for plane in both.planes))
    (free,) = [p for p in both.planes[1].pairs.everything() if not p.taken and p.peer == 0][:1]
    theirs = both.planes[0].pairs.find(free.name)
    both.planes[0].pairs.retire(theirs)
    until(lambda: free.retired)
    until(lambda: not list((tmp_path / "nccl").glob(f"*-{free.name}*")))
    both.close()


def test_communicators_that_never_come_about_end_the_attempt(tmp_path):
    plane = NcclPlane(tmp_path, 0, {1: 1}.get, FakeDevice(), FakeNccl(), spares=[], standby=0)
    plane.pairs.failures[1] = 3
    with pytest.raises(RecoveryImpossible, match="3 times in a row"):
        plane.make_send(Link(tmp_path, "job", "s", 0, 1, plane), 1, slots=4, slot_bytes=64)
    plane.close()


def _held(directory) -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files": len(os.listdir(directory / "nccl")),
        "bytes": fake_device.held["bytes"],
    }


def test_after_200_recoveries_all_that_is_held_is_what_it_was_after_10(tmp_path):
    both = Ends(tmp_path, slots=8, slot_bytes=256)
    found = {}
    for number in range(1, 201):
        until(lambda n=number: both.send.try_send(n, on_device(np.arange(4)), 1))
        both.recv.release(both.next().number)
        both.send.give_up()
        both.renew(both.generation)
        both.recv = both.attach(1, after=both.generation)
        if number in (10, 200):
            until(lambda n=number: all(p.pairs.ended >= n for p in both.planes))
            until(lambda: all(plane.ready() for plane in both.planes))
            time.sleep(0.3)
            found[number] = _held(tmp_path)
    early, late = found[10], found[200]
    assert all(late[name] <= early[name] + 3 for name in ("descriptors", "threads", "files")), found
    assert late["bytes"] <= early["bytes"] * 1.2, found
    assert all(plane.pairs.left_behind == [] for plane in both.planes)
    both.close()
