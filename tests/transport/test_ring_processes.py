"""Two real processes at the two ends, and a sender that is killed at any moment."""

import os
import random
import resource
import signal
import time
import traceback

import numpy as np
import pytest

from ftrt.errors import FtrtError
from ftrt.transport.ring import RecvRing, RingRetired, SendRing, flip_bits, seal_sender

IDENTITY = {"job": "a job", "stream_id": 7, "source": 0, "dest": 1}
BATCH_ROWS = 50


def message(seq):
    return np.arange(seq * 7919 % 1200) + seq


def rows(first):
    return np.arange(first, first + BATCH_ROWS)


def spin(call, *arguments):
    """Call until it gives something; the ends share few cores, so yield in between."""
    deadline = time.monotonic() + 5
    while not (result := call(*arguments)):
        if time.monotonic() > deadline:
            raise TimeoutError("the other end does not go on")
        os.sched_yield()
    return result


def send_all(sender, total):
    """Single messages of any length up to fragments, and every tenth time a batch."""
    seq = 0
    while seq < total:
        if seq % 10 == 9:
            sent = 0
            while sent < BATCH_ROWS:
                sent += spin(sender.try_send_batch, seq + sent, rows(seq)[sent:], 1)
            seq += BATCH_ROWS
        else:
            spin(sender.try_send, seq, message(seq), 1)
            seq += 1
    sender.close(seq - 1)
    return seq


def check(frame, expected_seq):
    """The next seq that is expected behind a frame whose content is right."""
    assert frame.seq == expected_seq
    if frame.records:
        assert frame.array.tolist() == list(range(frame.seq, frame.seq + frame.count))
    else:
        assert np.array_equal(frame.array, message(frame.seq))
    return frame.seq + frame.count


def start(work):
    """Fork a child that runs ``work`` and leaves without any clean-up."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)  # no child outlives a test that failed
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def make(path, slots=16):
    return SendRing.create(path, slots=slots, slot_bytes=2048, **IDENTITY)


def test_ten_thousand_messages_each_way(tmp_path):
    total = 10_000
    there, back = make(tmp_path / "there"), make(tmp_path / "back")

    def echo():
        receiver = RecvRing.attach(tmp_path / "there")
        while not receiver.finished:
            frame = receiver.poll()
            if frame is None:
                os.sched_yield()
                continue
            send = back.try_send_batch if frame.records else back.try_send
            spin(send, frame.seq, frame.array, 1)
            receiver.release(frame.number)

    receiver = RecvRing.attach(tmp_path / "back")
    children = [start(echo), start(lambda: send_all(there, total))]
    expected = 0
    while expected < total:
        frame = spin(receiver.poll)
        expected = check(frame, expected)
        receiver.release(frame.number)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert receiver.counters["torn"] == receiver.counters["duplicate"] == 0


@pytest.mark.parametrize("trial", range(30))
def test_all_that_a_killed_sender_completed_can_be_read(tmp_path, trial):
    chance = random.Random(trial)
    sender = make(tmp_path / "r", slots=chance.choice([5, 8, 64]))
    receiver = RecvRing.attach(tmp_path / "r")
    child = start(lambda: send_all(sender, 10**9))
    expected, kill_at = 0, chance.randrange(400)
    while expected < kill_at:
        frame = spin(receiver.poll)
        expected = check(frame, expected)
        receiver.release(frame.number)
    time.sleep(chance.random() * 2e-3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sealed = seal_sender(tmp_path / "r")
    while (frame := receiver.poll()) is not None:
        expected = check(frame, expected)
        receiver.release(frame.number)
    assert receiver.exhausted
    assert expected == sealed["next_seq"]
    assert receiver.counters["torn"] == receiver.counters["stale"] == 0


def test_a_zombie_receiver_that_wakes_up_releases_nothing(tmp_path):
    sender = make(tmp_path / "r")
    sender.try_send(0, np.arange(9), 1)

    def zombie():
        receiver = RecvRing.attach(tmp_path / "r")
        frame = receiver.poll()
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(RingRetired):
            receiver.release(frame.number)

    child = start(zombie)
    os.waitpid(child, os.WUNTRACED)
    heir = RecvRing.attach(tmp_path / "r", adopt=True)
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert sender.frames_released == 0
    heir.release(heir.poll().number)
    assert sender.frames_released == 1


def test_a_frame_damaged_by_a_third_process_is_healed(tmp_path):
    sender = make(tmp_path / "r")
    receiver = RecvRing.attach(tmp_path / "r")
    sender.try_send(0, message(5), 1)
    assert os.waitpid(start(lambda: flip_bits(tmp_path / "r", 1)), 0)[1] == 0
    assert receiver.poll() is None
    sender.rewrite(sender.nacked(), message(5), 1)
    assert np.array_equal(receiver.poll().array, message(5))


def test_a_file_size_limit_is_a_clear_error_and_leaves_no_file(tmp_path):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        with pytest.raises(FtrtError, match="no room for a ring"):
            make(tmp_path / "r")

    assert os.waitpid(start(limited), 0)[1] == 0
    assert os.listdir(tmp_path) == []
