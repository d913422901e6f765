"""Both ends of a channel between two (fake) GPUs in one process: what travels, and what returns."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ftrt.errors import UsageError
from ftrt.transport.factory import Link
from ftrt.transport.nccl.fake import FakeNccl
from ftrt.transport.nccl.fake_device import FakeArray, FakeDevice
from ftrt.transport.nccl.plane import NcclPlane

sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))
from channel_contract import ARRAYS


def until(ready, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not (found := ready()):
        assert time.monotonic() < end_s, "nothing came"
        time.sleep(0.0005)
    return found


class Ends:
    """A sender in process 0, a receiver in process 1, a spare's plane as process 2."""

    def __init__(
        self, directory: Path, slots=8, slot_bytes=4096, path="graph", spares=(), register="buffer"
    ):
        self.holder = {0: 0, 1: 1}
        self.planes = [
            NcclPlane(
                directory,
                process,
                self.holder.get,
                FakeDevice(process % 2),
                FakeNccl(),
                spares=[s for s in spares if s % 2 != process % 2],
                path=path,
                register=register,
            )
            for process in (0, 1, *spares)
        ]
        self.sizes = {"slots": slots, "slot_bytes": slot_bytes}
        self.generation = 1
        self.links = [Link(directory, "job", "s", 0, 1, plane) for plane in self.planes]
        self.send = self.planes[0].make_send(self.links[0], 1, **self.sizes)
        self.recv = self.attach(1)

    def attach(self, process, after=-1):
        """The receiving end at a process; the frames that come, once it is connected."""
        plane, link = self.planes[process], self.links[process]
        recv, self.generation = until(lambda: plane.make_recv(link, after))
        until(lambda: recv.pair.connected and self.send.pair.connected)
        return recv

    def renew(self, after):
        """The sender's next channel."""
        self.send = self.planes[0].make_send(self.links[0], after + 1, **self.sizes)

    def next(self, recv=None):
        return until((recv or self.recv).poll)

    def close(self):
        for plane in self.planes:
            plane.close()


@pytest.fixture
def ends(tmp_path):
    made = []

    def make(**options):
        made.append(Ends(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def on_device(array):
    return FakeArray(np.array(array), 0)


@pytest.mark.parametrize("name", [n for n in ARRAYS if ARRAYS[n].dtype.kind in "biufc"])
def test_dtype_and_shape_are_kept(ends, name):
    both = ends(slots=8)
    array = ARRAYS[name]
    assert both.send.try_send(1, FakeArray(array, 0), 7)
    frame = both.next()
    assert (frame.seq, frame.count, frame.epoch, frame.records) == (1, 1, 7, False)
    found = frame.array.get()
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_a_message_longer_than_a_slot_covers_several(ends):
    both = ends(slots=8, slot_bytes=4096)
    big = np.arange(3 * 4096, dtype=np.uint8)
    for seq in range(1, 10):  # the place behind the fourth is too short: it begins anew
        until(lambda seq=seq: both.send.try_send(seq, on_device(big + np.uint8(seq)), 1))
        frame = both.next()
        assert np.array_equal(frame.array.get(), big + np.uint8(seq))
        both.recv.release(frame.number)
    with pytest.raises(UsageError, match="slot_bytes="):
        both.send.try_send(10, on_device(np.zeros(9 * 4096, np.uint8)), 1)


def test_rows_of_a_batch_have_slots_of_their_own_or_share_one(ends):
    both = ends(slots=32, slot_bytes=1024)
    large = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)
    assert both.send.try_send_batch(1, on_device(large), 3) == 16
    small = np.arange(100 * 4, dtype=np.int32).reshape(100, 4)
    assert both.send.try_send_batch(17, on_device(small), 3) == 64  # as many as a slot holds
    first, second = both.next(), both.next()
    assert (first.seq, first.count, second.seq, second.count) == (1, 16, 17, 64)
    assert np.array_equal(first.array.get(), large)
    assert np.array_equal(second.array.get(), small[:64])
    assert both.recv.counters["ok"] == 17  # each slot has a header, and was checked


@pytest.mark.parametrize("path", ["graph", "eager", "revoke"])
def test_a_window_goes_round_and_graphs_are_replayed(ends, path):
    both = ends(slots=32, slot_bytes=256, path=path)
    seq = 1
    for lap in range(8):
        rows = np.arange(16 * 32, dtype=np.int64).reshape(16, 32) + lap
        until(lambda n=seq, r=rows: both.send.try_send_batch(n, on_device(r), 1) == 16)
        frame = both.next()
        assert frame.seq == seq and np.array_equal(frame.array.get(), rows)
        both.recv.release(frame.number)
        seq += 16
    replayed = both.send.counters["graph"]
    assert replayed == 0 if path == "eager" else replayed >= 4


def test_credit_ends_with_the_window_and_comes_back(ends):
    both = ends(slots=4)
    one = on_device(np.arange(8))
    assert [both.send.try_send(seq, one, 1) for seq in range(1, 6)] == [True] * 4 + [False]
    frames = [both.next() for _ in range(4)]
    assert both.send.free_slots == 0 and both.send.oldest_seq_held == 1
    both.recv.release(frames[1].number)
    assert both.send.free_slots == 2 and both.send.oldest_seq_held == 3
    assert both.send.try_send(5, one, 1)


def test_a_damaged_slot_is_asked_for_again_and_nothing_passes_it(ends):
    both = ends(slots=8)
    arrays = [on_device(np.arange(100) + seq) for seq in range(3)]
    both.recv.damage(0)
    for seq in range(3):
        assert both.send.try_send(seq + 1, arrays[seq], 1)
    frame = until(lambda: both.recv.poll() or both.send.nacked())
    assert frame == 1 and both.recv.counters["torn"] == 1
    assert both.send.first_seq_of(1) == 1 and not both.send.differs(1, arrays[0])
    both.send.rewrite(1, arrays[0], 1)
    assert [both.next().seq for _ in range(3)] == [1, 2, 3]
    assert both.send.nacked() is None


def test_a_slot_is_in_use_as_long_as_any_array_in_it_lives(ends):
    both = ends(slots=8)
    both.send.try_send(1, on_device(np.arange(10)), 1)
    frame = both.next()
    owner, number = frame.base, frame.number
    part = frame.array[2:4]
    del frame
    gc.collect()
    held = sys.getrefcount(owner)
    del part
    gc.collect()
    assert sys.getrefcount(owner) == held - 1
    both.recv.release(number)


def test_host_arrays_and_those_of_another_gpu_are_refused(ends):
    both = ends()
    with pytest.raises(UsageError, match=r"cupy\.asarray"):
        both.send.try_send(1, np.zeros(3), 1)
    with pytest.raises(UsageError, match="GPU 1"):
        both.send.try_send(1, FakeArray(np.zeros(3), 1), 1)
    assert both.send.frames_sent == 0


def test_a_channel_that_is_given_up_ends_and_a_standby_goes_on(ends):
    both = ends(slots=8)
    until(both.planes[0].ready)
    for seq in range(1, 5):
        both.send.try_send(seq, on_device(np.arange(4) * seq), 1)
    both.recv.release(both.next().number)
    old = both.send.pair
    assert both.send.give_up() == 2
    both.renew(1)
    assert both.send.pair is not old and both.send.pair.connected  # it was made beforehand
    assert both.recv.exhausted
    again = both.attach(1, after=1)
    assert again.pair.name == both.send.pair.name
    both.send.try_send(2, on_device(np.arange(4) * 2), 2)
    assert np.array_equal(both.next(again).array.get(), np.arange(4) * 2)
    until(lambda: both.planes[0].pairs.ended == 1)


def test_the_spare_of_a_receiver_is_connected_beforehand(ends):
    both = ends(slots=8, spares=(2, 3))
    until(lambda: all(plane.ready() for plane in both.planes))
    assert both.planes[0].pairs.free_with(3) == 1  # on the receiver's GPU
    assert both.planes[0].pairs.free_with(2) == 0  # on the sender's own
    both.send.try_send(1, on_device(np.arange(4)), 1)  # nobody will receive it
    both.holder[1] = 3
    assert both.planes[0].is_stale(both.send, 1)
    both.renew(1)
    assert both.send.pair.peer == 3 and both.send.pair.connected
    recv = both.attach(3)
    both.send.try_send(1, on_device(np.arange(4)), 2)
    assert both.next(recv).seq == 1
    until(lambda: both.planes[0].pairs.ended == 1)


def test_standby_zero_makes_none(tmp_path):
    plane = NcclPlane(tmp_path, 0, {1: 1}.get, FakeDevice(), FakeNccl(), spares=[2, 3], standby=0)
    plane.make_send(Link(tmp_path, "job", "s", 0, 1, plane), 1, slots=4, slot_bytes=64)
    assert len(plane.pairs.everything()) == 1
    plane.close()


def test_a_group_that_never_comes_ends_the_channel_by_our_own_deadline(ends):
    """The notes say that it is on its way, and nothing on the host says that it is not."""
    both = ends(slots=8)
    both.planes[1].transfer_timeout_s = 0.2
    both.send._post = lambda *_: None  # the sender stops between the note and the send
    both.send.try_send(1, on_device(np.arange(4)), 1)
    until(lambda: both.recv.poll() or both.recv.broken)
    assert "did not come in 0.2 s" in str(both.recv.broken)
    assert both.recv.exhausted and "receiver" in both.send.failed
    assert both.send.give_up() == 1  # from there on it is sent again
    both.renew(1)
    recv = both.attach(1, after=1)
    both.send.try_send(1, on_device(np.arange(4)), 1)
    assert both.next(recv).seq == 1
    until(lambda: both.planes[1].pairs.ended == 1)


def test_a_communicator_that_cannot_be_made_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("ftrt.transport.nccl.pair.CONNECT_TIMEOUT_S", 0.2)
    plane = NcclPlane(
        tmp_path, 0, {1: 1}.get, FakeDevice(), FakeNccl(), spares=[], standby=0, path="revoke"
    )
    link = Link(tmp_path, "job", "s", 0, 1, plane)
    send = plane.make_send(link, 1, slots=4, slot_bytes=64)
    assert not send.try_send(1, on_device(np.zeros(4)), 1)
    assert "did not connect within" in until(lambda: send.failed)
    assert send.give_up() == 1
    plane.close()


def test_the_end_of_a_stream_is_told(ends):
    both = ends()
    both.send.try_send(1, on_device(np.arange(4)), 1)
    both.send.close(1)
    assert not both.recv.finished
    both.next()
    assert both.recv.finished and both.recv.closed_seq == 1


def test_a_graph_whose_peer_never_comes_is_ended_by_our_own_deadline(ends):
    """A replayed graph waits on the device, where no error of the host can ever appear."""
    both = ends(slots=32, slot_bytes=256)
    both.planes[1].transfer_timeout_s = 0.3
    rows, seq = on_device(np.arange(16 * 32, dtype=np.int64).reshape(16, 32)), 1
    for _ in range(6):  # both places of the window have a graph by then
        until(lambda n=seq: both.send.try_send_batch(n, rows, 1) == 16)
        both.recv.release(both.next().number)
        seq += 16
    assert both.send.counters["graph"] and both.recv.pair.graphs
    both.send._post = lambda *_: None  # told of, and never sent
    assert both.send.try_send_batch(seq, rows, 1) == 16
    stream = both.recv._receiving
    until(lambda: both.recv.poll() or not both.planes[1].device.idle(stream))
    parked_s = time.monotonic()
    until(lambda: both.recv.poll() or both.recv.broken)
    assert time.monotonic() - parked_s < 2.0
    assert "did not come in 0.3 s" in str(both.recv.broken)
    until(lambda: both.planes[1].pairs.ended == 1)  # graphs first, then the communicator
    until(lambda: both.planes[1].device.idle(stream))
    assert not both.planes[1].pairs.left_behind
