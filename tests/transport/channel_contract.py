"""What every channel keeps to; a subclass gives ``ends``, ``seal`` and ``corrupt``."""

from __future__ import annotations

import numpy as np
import pytest

from ftrt.errors import UsageError
from ftrt.transport.slots import Verdict

RECORD = np.dtype([("id", "<i4"), ("pos", "<f8", (3,))])
ARRAYS = {
    "bool": np.array([True, False, True]),
    "int8": np.arange(-3, 4, dtype=np.int8),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "big-endian": np.arange(5, dtype=">i4"),
    "float16": np.linspace(0, 1, 7, dtype=np.float16),
    "float64": np.linspace(0, 1, 300).reshape(3, 4, 25),
    "complex64": np.array([1 + 2j, -3j], np.complex64),
    "datetime64": np.array(["2020-01-01", "NaT"], "datetime64[ms]"),
    "timedelta64": np.arange(4).astype("timedelta64[s]"),
    "text": np.array(["ab", "c"]),
    "bytes": np.array([b"ab", b"c"]),
    "structured": np.zeros(3, RECORD),
    "scalar": np.array(2.5),
    "empty": np.empty((0, 3), np.float32),
    "strided": np.arange(20)[::3],
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "transposed": np.arange(12).reshape(3, 4).T,
    "odd length": np.arange(257, dtype=np.uint8),
    "unaligned": np.arange(258, dtype=np.uint8)[1:],
    "fragments": np.arange(2500, dtype=np.float64).reshape(50, 50),
    "whole slots": np.arange(2 * 4096, dtype=np.uint8),
}
READONLY = np.arange(9.0)
READONLY.flags.writeable = False
ARRAYS["read-only"] = READONLY


class ChannelContract:
    """Inherited by one test class per channel."""

    def ends(self, slots=8, slot_bytes=4096):
        raise NotImplementedError

    def seal(self, sender):
        raise NotImplementedError

    def corrupt(self, sender, frame):
        raise NotImplementedError

    @pytest.mark.parametrize("name", ARRAYS)
    def test_an_array_arrives_as_it_was_sent(self, name):
        sender, receiver = self.ends()
        array = ARRAYS[name]
        for seq in range(40):
            assert sender.try_send(seq, array, epoch=3)
            frame = receiver.poll()
            assert (frame.seq, frame.count, frame.records, frame.epoch) == (seq, 1, False, 3)
            assert frame.array.dtype == array.dtype
            assert frame.array.shape == array.shape
            assert frame.array.tobytes() == array.tobytes()
            assert not frame.array.flags.writeable
            receiver.release(frame.number)
        assert receiver.counters["ok"] == 40

    def test_objects_are_refused(self):
        sender, receiver = self.ends()
        with pytest.raises(UsageError, match="objects"):
            sender.try_send(0, np.array([{}, None]), epoch=1)
        assert receiver.poll() is None

    def test_a_message_larger_than_the_channel_is_refused(self):
        sender, _ = self.ends(slots=2, slot_bytes=64)
        with pytest.raises(UsageError):
            sender.try_send(0, np.zeros(17), epoch=1)

    def test_credit_ends_and_comes_back_with_the_release(self):
        sender, receiver = self.ends(slots=3)
        assert [sender.try_send(seq, np.array(seq), 1) for seq in range(4)] == [1, 1, 1, 0]
        assert (sender.frames_sent, sender.frames_released, sender.free_slots) == (3, 0, 0)
        frames = [receiver.poll() for _ in range(4)]
        assert frames[3] is None
        receiver.release(frames[1].number)
        receiver.release(frames[0].number)
        assert (sender.frames_released, sender.free_slots) == (2, 2)
        assert int(frames[2].array) == 2

    def test_a_frame_that_was_not_read_cannot_be_released(self):
        sender, receiver = self.ends()
        sender.try_send(0, np.array(1), 1)
        with pytest.raises(UsageError):
            receiver.release(1)

    def test_batches_split_over_frames_and_resume(self):
        sender, receiver = self.ends(slots=2, slot_bytes=128)
        records = np.arange(100, dtype=np.int64).reshape(50, 2)
        sent, got = 0, []
        while len(got) < 50:
            sent += sender.try_send_batch(7 + sent, records[sent:], epoch=1)
            frame = receiver.poll()
            assert frame.records and frame.count == len(frame.array) <= 8
            assert frame.seq == 7 + len(got)
            got.extend(frame.array.tolist())
            receiver.release(frame.number)
        assert got == records.tolist()

    def test_an_empty_batch_sends_nothing(self):
        sender, receiver = self.ends()
        assert sender.try_send_batch(0, np.empty((0, 2)), epoch=1) == 0
        assert receiver.poll() is None

    def test_a_batch_of_zero_byte_records(self):
        sender, receiver = self.ends()
        assert sender.try_send_batch(0, np.empty((5, 0)), epoch=1) == 5
        assert receiver.poll().array.shape == (5, 0)

    def test_close_with_and_without_messages(self):
        sender, receiver = self.ends()
        sender.try_send(0, np.array(1), 1)
        sender.close(0)
        assert not receiver.finished
        receiver.poll()
        assert receiver.finished
        sender, receiver = self.ends()
        sender.close(-1)
        assert receiver.finished

    def test_nothing_behind_the_seal_is_read(self):
        sender, receiver = self.ends()
        sender.try_send(0, np.array(1), 1)
        self.seal(sender)
        assert not receiver.exhausted
        assert receiver.poll().seq == 0
        assert receiver.exhausted
        assert receiver.poll() is None

    def test_a_damaged_frame_is_asked_for_again_and_healed(self):
        sender, receiver = self.ends()
        arrays = [np.arange(5.0), np.empty(0), np.arange(3), np.arange(4)]
        for seq, array in enumerate(arrays):
            sender.try_send(seq, array, 1)
        for frame in (1, 2, 3):
            self.corrupt(sender, frame)
        for seq in (0, 1, 2):
            assert receiver.poll() is None
            assert receiver.poll() is None
            number = sender.nacked()
            assert sender.first_seq_of(number) == seq
            sender.rewrite(number, arrays[seq], 1)
            frame = receiver.poll()
            assert frame.seq == seq and frame.array.tolist() == arrays[seq].tolist()
        assert sender.nacked() is None
        assert receiver.poll().seq == 3
        assert (receiver.counters["torn"], receiver.counters["nacks"]) == (3, 3)

    def test_a_damaged_batch_is_healed(self):
        sender, receiver = self.ends(slot_bytes=64)
        records = np.arange(20.0)
        assert sender.try_send_batch(0, records, 1) == 20
        self.corrupt(sender, 2)
        assert receiver.poll().count == 8
        assert receiver.poll() is None
        first, count = sender.first_seq_of(2), sender.count_of(2)
        sender.rewrite(2, records[first : first + count], 1)
        assert receiver.poll().array.tolist() == records[8:16].tolist()

    def test_a_frame_nobody_asked_for_is_not_rewritten(self):
        sender, _ = self.ends()
        sender.try_send(0, np.array(1), 1)
        with pytest.raises(UsageError):
            sender.rewrite(1, np.array(1), 1)

    def test_a_message_sent_again_is_marked(self):
        sender, receiver = self.ends()
        for seq in (0, 1, 1, 2):
            sender.try_send(seq, np.array(seq), 1)
        verdicts = [receiver.poll().verdict for _ in range(4)]
        assert verdicts == [Verdict.OK, Verdict.OK, Verdict.DUPLICATE, Verdict.OK]
        assert receiver.counters["duplicate"] == 1
