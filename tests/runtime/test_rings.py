"""The agent's view of the rings: what dead senders leave takes room only while it is needed."""

from __future__ import annotations

import numpy as np
import pytest

from ftrt.host.evidence import Rings
from ftrt.transport import factory
from ftrt.transport.factory import Link, earlier_channels, make_recv, make_send
from ftrt.transport.ring import RingRetired


def test_a_dead_senders_ring_is_removed_once_all_of_it_was_consumed(tmp_path):
    link = Link(tmp_path, "job", "s-1/x", 0, 1)
    rings = Rings(tmp_path)
    out = make_send(link, 1000, slots=4, slot_bytes=64)
    for seq in (1, 2, 3):
        assert out.try_send(seq, np.full(2, seq), 1)
    into, generation = make_recv(link, -1)
    rings.refresh()
    rings.discard_read()  # its sender lives
    delivered = rings.fence({0})
    assert delivered == {("s-1/x", 0, 1): 3}
    frames = [into.poll() for _ in range(3)]
    into.release(2)
    rings.discard_read()
    assert len(earlier_channels(link, 2000)) == 1 and out.path.exists()
    into.release(3)
    later = make_send(link, 2000, slots=4, slot_bytes=64)
    rings.refresh()
    rings.discard_read()
    assert not out.path.exists() and later.path.exists()
    assert [frame.array[0] for frame in frames] == [1, 2, 3]  # who maps it still has it
    assert into.exhausted and make_recv(link, generation)[1] == 2000
    assert later.try_send(4, np.full(2, 4), 2)
    assert rings.fence({0}) == {("s-1/x", 0, 1): 4}


def test_a_replaced_receiver_gives_nothing_back(tmp_path):
    link = Link(tmp_path, "job", "s", 0, 1)
    out, rings = make_send(link, 1000, slots=4, slot_bytes=64), Rings(tmp_path)
    assert out.try_send(1, np.zeros(2), 1)
    old, _ = make_recv(link, -1)
    assert rings.fence({1}) == {}
    old.poll()
    with pytest.raises(RingRetired):
        old.release(1)
    new, _ = make_recv(link, -1)
    assert new.poll().seq == 1
    new.release(1)
    assert out.frames_released == 1


def test_a_ring_that_is_removed_while_it_is_looked_for_is_passed_over(tmp_path, monkeypatch):
    link = Link(tmp_path, "job", "s", 0, 1)
    make_send(link, 1000, slots=4, slot_bytes=64).path.unlink()
    make_send(link, 2000, slots=4, slot_bytes=64)
    listed = factory.chain(tmp_path, "s", 0, 1)
    gone = listed[0].with_name(listed[0].name[:-8] + "00001000")
    monkeypatch.setattr(factory, "chain", lambda *link: [gone, *listed])
    assert make_recv(link, -1)[1] == 2000
    assert earlier_channels(link, 2000) == []
