"""The ring keeps to the contract; what its file, its seals and its generations promise."""

import errno
import os
import uuid

import numpy as np
import pytest
from channel_contract import ChannelContract

from ftrt import atomics
from ftrt.errors import FtrtError, RecoveryImpossible, UsageError
from ftrt.transport import layout, meta
from ftrt.transport.ring import (
    RecvRing,
    RingRetired,
    SendRing,
    flip_bits,
    retire_receiver,
    seal_sender,
)
from ftrt.transport.ring_heal import SealedRing

IDENTITY = {"job": "a job", "stream_id": 7, "source": 0, "dest": 1}


def at_slot(ring, frame):
    return 512 + (frame - 1) % ring[layout.W_SLOTS] * ring.stride_words


def make(path, slots=8, slot_bytes=4096, **more):
    return SendRing.create(path, slots=slots, slot_bytes=slot_bytes, **{**IDENTITY, **more})


class TestRing(ChannelContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path

    def ends(self, slots=8, slot_bytes=4096):
        sender = make(self.directory / uuid.uuid4().hex, slots, slot_bytes)
        return sender, RecvRing.attach(sender.path)

    def seal(self, sender):
        seal_sender(sender.path)

    def corrupt(self, sender, frame):
        flip_bits(sender.path, frame)


def test_seal_is_final_and_shuts_out_the_sender(tmp_path):
    sender = make(tmp_path / "r", first_seq=10)
    receiver = RecvRing.attach(tmp_path / "r")
    assert seal_sender(make(tmp_path / "none", first_seq=4).path)["next_seq"] == 4
    sender.try_send_batch(10, np.arange(3), 1)
    sender.try_send(13, np.arange(3), 1)
    receiver.release(receiver.poll().number)
    sealed = {"last_frame": 2, "next_seq": 14, "released": 1}
    assert seal_sender(tmp_path / "r") == sealed
    with pytest.raises(RingRetired):
        sender.try_send(14, np.arange(3), 1)
    sender._put(sender._record(2), sender._one, np.arange(3), 0)  # a zombie's late frame
    assert seal_sender(tmp_path / "r") == sealed
    assert receiver.poll().number == 2
    assert receiver.poll() is None and receiver.exhausted


@pytest.mark.parametrize("word", [layout.W_CLOSED, layout.W_CLOSED_FRAMES])
@pytest.mark.parametrize("closed", [False, True])
def test_a_damaged_end_ends_no_stream(tmp_path, word, closed):
    sender = make(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    sender.try_send(1, np.arange(3), 1)
    if closed:
        sender.close(1)
    ring = layout.RingMap.open(tmp_path / "r")
    for bit in range(64):
        ring.words[word] ^= np.uint64(1 << bit)
        if closed or word == layout.W_CLOSED:
            for look in (lambda: receiver.finished, lambda: receiver.closed_seq):
                with pytest.raises(RecoveryImpossible, match="--resume"):
                    look()
        else:
            assert not receiver.finished and receiver.closed_seq is None
        ring.words[word] ^= np.uint64(1 << bit)
    assert receiver.poll().seq == 1 and receiver.finished == closed


def test_a_frame_that_was_asked_for_is_read_only_once_its_sender_is_through(tmp_path):
    sender = make(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    sender.try_send(1, np.arange(3), 1)
    flip_bits(tmp_path / "r", 1)
    assert receiver.poll() is None and sender.nacked() == 1
    flip_bits(tmp_path / "r", 1)  # all bytes are there again, but the sender may be writing still
    assert receiver.poll() is None and receiver.poll_plain(1) is None
    sender.rewrite(1, np.arange(3), 1)
    assert receiver.poll().seq == 1


def test_fragments_without_their_end_do_not_count(tmp_path):
    sender = make(tmp_path / "r", slot_bytes=64)
    sender.try_send(0, np.arange(2), 1)
    sender.try_send(1, np.arange(20), 1)
    ring = layout.RingMap.open(tmp_path / "r")
    last = 512 + 3 * ring.stride_words
    atomics.store(ring.words, last, 0)  # the sender died before the third fragment
    receiver = RecvRing.attach(tmp_path / "r")
    assert receiver.poll().seq == 0
    assert receiver.poll() is None
    assert seal_sender(tmp_path / "r") == {"last_frame": 1, "next_seq": 1, "released": 0}
    assert receiver.exhausted


def test_a_damaged_frame_of_a_dead_sender_is_left_to_its_successor(tmp_path):
    sender = make(tmp_path / "r")
    for seq in range(3):
        sender.try_send(seq, np.arange(9) + seq, 1)
    flip_bits(tmp_path / "r", 2)
    assert seal_sender(tmp_path / "r")["next_seq"] == 1


def test_a_successor_reads_what_was_not_released_and_the_old_receiver_is_fenced(tmp_path):
    sender = make(tmp_path / "r")
    for seq in range(4):
        sender.try_send(seq, np.array(seq), 1)
    zombie = RecvRing.attach(tmp_path / "r")
    zombie.release(zombie.poll().number)
    zombie.poll()
    assert retire_receiver(tmp_path / "r") == (1, 1)
    with pytest.raises(RingRetired):
        zombie.release(2)
    heir = RecvRing.attach(tmp_path / "r")
    assert [heir.poll().seq for _ in range(3)] == [1, 2, 3]
    third = RecvRing.attach(tmp_path / "r", start_frame=3, adopt=True)
    assert third.poll().seq == 2
    with pytest.raises(RingRetired):
        heir.release(2)
    assert sender.frames_released == 1


def test_released_frames_cannot_be_read_again(tmp_path):
    sender = make(tmp_path / "r")
    sender.try_send(0, np.array(1), 1)
    receiver = RecvRing.attach(tmp_path / "r")
    receiver.release(receiver.poll().number)
    with pytest.raises(UsageError, match="released already"):
        RecvRing.attach(tmp_path / "r", start_frame=1)


def test_frames_of_an_older_epoch_or_another_stream_are_stale(tmp_path):
    sender = make(tmp_path / "r", epoch=5)
    receiver = RecvRing.attach(tmp_path / "r")
    sender.try_send(0, np.array(1), 4)
    assert receiver.poll() is None
    assert receiver.counters["stale"] == 1
    sender.rewrite(1, np.array(1), 5)
    assert receiver.poll().epoch == 5
    sender._stream, sender._epoch = 8, -1
    sender.try_send(1, np.array(1), 5)
    assert receiver.poll() is None
    assert receiver.counters["stale"] == 2


@pytest.mark.parametrize("word", range(8))
def test_every_damaged_header_word_is_seen_and_healed(tmp_path, word):
    sender = make(tmp_path / "r")
    ring = layout.RingMap.open(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    frame = 0
    for bit in range(64):
        for _ in range(20 if word == 0 else 1):  # what a publish word becomes depends on the frame
            frame += 1
            sender.try_send(frame, np.arange(4) + frame, 1)
            ring.words[at_slot(ring, frame) + word] ^= np.uint64(1 << bit)
            assert receiver.poll() is None
            assert sender.nacked() == frame
            assert receiver.poll() is None  # asked for, so it waits for the rewrite
            sender.rewrite(frame, np.arange(4) + frame, 1)
            assert receiver.poll().array.tolist() == list(range(frame, frame + 4))
            receiver.release(frame)
    assert receiver.counters["torn"] + receiver.counters["stale"] == frame


def test_damaged_meta_is_seen(tmp_path):
    sender = make(tmp_path / "r")
    sender.try_send(0, np.arange(4), 1)
    ring = layout.RingMap.open(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    ring.octets[4096 + 64 + 3] ^= 1
    assert receiver.poll() is None and sender.nacked() == 1


def test_what_a_slot_says_before_its_frame_is_sent_does_not_matter(tmp_path):
    sender = make(tmp_path / "r", slots=2)
    ring = layout.RingMap.open(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    for frame in range(1, 9):
        for word in (0, frame - 1, frame, frame + 1, 1 << 63):
            atomics.store(ring.words, at_slot(ring, frame), word)
            assert receiver.poll() is None and sender.nacked() is None
        sender.try_send(frame, np.array(frame), 1)
        assert int(receiver.poll().array) == frame
        receiver.release(frame)


@pytest.mark.parametrize("bit", [0, 1, 2, 5, 63])
def test_a_publish_word_damaged_after_the_seal_is_healed_by_the_successor(tmp_path, bit):
    sender = make(tmp_path / "r")
    for frame in range(1, 5):
        sender.try_send(frame, np.arange(4) + frame, 1)
    ring = layout.RingMap.open(tmp_path / "r")
    atomics.store(ring.words, layout.W_SENT, 3)  # it died before it had counted its last frame
    assert seal_sender(tmp_path / "r")["last_frame"] == 4
    ring.words[at_slot(ring, 4)] ^= np.uint64(1 << bit)
    receiver, sealed = RecvRing.attach(tmp_path / "r"), SealedRing(tmp_path / "r")
    assert [receiver.poll().seq for _ in range(3)] == [1, 2, 3]
    assert receiver.poll() is None and sealed.nacked() == 4
    assert not sealed.differs(4, np.arange(4) + 4) and sealed.differs(4, np.arange(4) + 5)
    sealed.rewrite(4, np.arange(4) + 4, 2)
    assert receiver.poll().array.tolist() == [4, 5, 6, 7] and receiver.exhausted


def test_a_foreign_file_or_job_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(bytes(9000))
    with pytest.raises(FtrtError, match="not a ring"):
        RecvRing.attach(tmp_path / "x")
    (tmp_path / "y").write_bytes(b"")
    with pytest.raises(FtrtError, match="too short"):
        RecvRing.attach(tmp_path / "y")
    make(tmp_path / "r")
    RecvRing.attach(tmp_path / "r", job="a job")
    with pytest.raises(FtrtError, match="another job"):
        RecvRing.attach(tmp_path / "r", job="other")


def test_no_room_is_a_clear_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        os.ftruncate(descriptor, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FtrtError, match="No space left.*fewer or smaller slots"):
        make(tmp_path / "r")
    assert os.listdir(tmp_path) == []


def test_meta_that_is_too_long_is_refused(tmp_path):
    dtype = np.dtype([(f"a long field name {i}", "f8") for i in range(40)])
    with pytest.raises(UsageError, match="describe"):
        make(tmp_path / "r").try_send(0, np.zeros(1, dtype), 1)
    assert meta.decode(b"('<f8', (2, 3))") == (np.dtype("f8"), (2, 3))
