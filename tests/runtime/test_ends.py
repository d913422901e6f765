"""What a program may do with its ends and its state, in real jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import ROOT, run_job

from ftrt.ledger.spool import Spool
from ftrt.oracle import check_effects

HEAD = """
import itertools
import numpy as np
import ftrt
from ftrt.errors import DeadlineExceeded, UsageError

def make(seq):
    return np.full(4, seq)

def refused(sends):
    for send in sends:
        try:
            send()
        except UsageError as error:
            print("refused:", error)

def consumed(end):
    for message in end:
        yield message
        with message.consume():
            pass

with ftrt.init() as rt:
"""
TWICE = """
    if rt.rank == 0:
        with rt.sender("s", to=1, replay=make) as out:
            out.send(make(1))
            try:
                rt.sender("s", to=1, replay=make)
            except UsageError as error:
                print("refused:", error)
    else:
        ends = rt.receiver("s", source=0)
        message = ends.receive()
        with message.consume():
            pass
        for again in (lambda: message.consume().__exit__(None, None, None), message.drop):
            try:
                again()
            except UsageError as error:
                assert "consumed or dropped already" in str(error)
            else:
                raise AssertionError("a message took effect twice")
        try:
            rt.receiver("s", source=0)
        except UsageError as error:
            print("refused:", error)
        assert ends.receive() is None
"""
RESTORED = """
    if rt.rank == 0:
        with rt.sender("s", to=1, replay=make) as out:
            while out.next_seq <= 20:
                out.send(make(out.next_seq))
    else:
        state = rt.restore() or {"sum": 0}
        end = rt.receiver("s", source=0)
        early = []  # it may be there already
        try:
            early.append(end.receive(timeout_s=0))
        except DeadlineExceeded:
            pass
        for message in itertools.chain(early, end):
            if message.seq == 11:
                for wrong in (5, "k" * 200):
                    try:
                        with message.consume() as effect:
                            effect["sum"] = 10**6
                            effect[wrong] = 1
                    except (UsageError, AttributeError):
                        state = rt.restore()
                        assert state["sum"] == 55, state
            with message.consume() as effect:
                state["sum"] += message.seq
                effect["sum"] = state["sum"]
        assert rt.restore()["sum"] == 210 == state["sum"]
"""
AFTER_THE_END = """
    if rt.rank == 0:
        masked = np.ma.array([1, 2], mask=[0, 1])
        with rt.sender("s", to=np.int64(1), replay=make) as out:
            sends = [lambda: out.send(masked), lambda: out.send_batch(masked.reshape(2, 1))]
            out.send(make(1))
            out.send(make(2))
            refused(sends)
        refused([lambda: out.send(make(3)), lambda: out.send_batch(np.ones((2, 4)))])
        with rt.sender("again", to=1, spool=True) as more:
            more.send(make(1))
        refused([lambda: more.send(make(2))])
    else:
        for stream, last in (("s", 2), ("again", 1)):
            assert sum(1 for _ in consumed(rt.receiver(stream, np.int64(0)))) == last
"""
NESTED = """
    if rt.rank == 0:
        refused = []
        def hook(rt):
            try:
                out.send(make(0))
            except UsageError:
                refused.append(True)
        rt.on_recovery(hook)
        out = rt.sender("s", to=1, replay=make, window=2)
        while out.next_seq <= 200:
            out.send(make(out.next_seq))
        out.close()
        assert refused
    else:
        for message in rt.receiver("s", source=0):
            assert (message.array == message.seq).all(), (message.seq, message.array)
            with message.consume():
                pass
"""


WRONG_HOOK = """
    if rt.rank == 0:
        def hook(rt):
            raise ValueError("a hook of the program's")
        with rt.sender("s", to=1, replay=make) as out:
            while out.next_seq <= 60:
                out.send(make(out.next_seq))
        rt.on_recovery(hook)
    else:
        for message in rt.receiver("s", source=0):
            with message.consume():
                pass
"""


LATE_DAMAGE = """
    import time
    if rt.rank == 0:
        with rt.sender("s", to=1, **HOW) as out:
            for seq in (1, 2):
                out.send(make(seq))
    else:
        time.sleep(0.3)  # the sender waits, and gives back what nobody needs
        end = rt.receiver("s", source=0)
        for seq in (1, 2):
            end.corrupt_next()
            message = end.receive()
            assert message.seq == seq and (message.array == seq).all()
            with message.consume():
                pass
"""


KEPT = """
    if rt.rank == 0:
        with rt.sender("s", to=1, replay=make, window=8) as out:
            while out.next_seq <= 120:
                out.send(make(out.next_seq))
    else:
        end, kept = rt.receiver("s", source=0), []

        def consume_upto(last, keep):
            for message in end:
                kept.append((message.seq, message.array))
                del kept[: max(0, len(kept) - keep)]
                with message.consume():
                    pass
                assert all((array == seq).all() for seq, array in kept), kept
                if message.seq == last:
                    break

        consume_upto(60, 7)  # all but one of the slots
        message = end.receive()  # left the slots, as so many are kept
        one = message.array
        with message.consume():
            pass
        consume_upto(80, 0)
        assert (one == 61).all()
        message = end.receive()
        one = message.array
        with message.consume():
            pass
        del message
        try:
            consume_upto(120, 0)
        except UsageError as error:
            assert "keeps an array of a message consumed long ago" in str(error), error
            assert (one == 81).all()
        else:
            raise AssertionError("the slot of message 81 was written again")
        del one
        consume_upto(120, 0)
"""


def job(tmp_path, text, *options):
    program = tmp_path / "program.py"
    program.write_text(HEAD + text)
    ended = run_job(tmp_path, ["-n", 2, *options], program)
    assert ended.status == 0, ended.output
    assert ended.report["audit"]["ok"]
    return ended


def test_an_end_is_opened_once(tmp_path):
    assert job(tmp_path, TWICE).output.count("refused:") == 2


def test_nothing_is_sent_behind_the_end_nor_without_its_mask(tmp_path):
    ended = job(tmp_path, AFTER_THE_END)
    assert ended.report["audit"]["sent"] == 3
    assert ended.output.count("refused: ") == 5
    assert ended.output.count("sender 's' is closed after message 2") == 2
    assert ended.output.count("the mask of a masked array would be lost") == 2


def test_restore_after_an_effect_that_raised(tmp_path):
    job(tmp_path, RESTORED)


def test_a_hook_cannot_take_the_number_of_a_message_on_its_way(tmp_path):
    # The receiver dies while the sender waits for credit, so the hook runs inside a send.
    ended = job(tmp_path, NESTED, "--spares", 1, "--fault", "kill:1@50msg")
    assert len(ended.named("recovery")) == 1


def test_a_slot_is_not_written_again_while_its_array_is_kept(tmp_path):
    job(tmp_path, KEPT)


def test_what_the_program_raises_while_its_rank_is_leaving_is_the_programs_error(tmp_path):
    # All is in the ring, so rank 0 has left its block when the receiver dies.
    program = tmp_path / "program.py"
    program.write_text(HEAD + WRONG_HOOK)
    options = ["-n", 2, "--spares", 2, "--restarts", 1, "--fault", "kill:1@30msg"]
    ended = run_job(tmp_path, options, program)
    assert ended.status == 1 and ended.report["attempts"] == 1
    assert ended.report["reason"] == "rank 0 raised ValueError: a hook of the program's"
    assert ended.output.count("Traceback") == 1


@pytest.mark.parametrize("how", [{"volatile": True}, {"spool": True}])
def test_the_oldest_message_that_is_not_consumed_is_kept(tmp_path, how):
    ended = job(tmp_path, LATE_DAMAGE.replace("HOW", repr(how)))
    assert len(ended.named("healed")) == 2


def test_a_rank_that_dies_after_its_work_is_done(tmp_path):
    text = """
    if rt.rank == 1:
        import time
        time.sleep(2.5)
"""
    ended = job(tmp_path, text, "--fault", "kill:0@1s")
    assert not ended.named("recovery")


@pytest.mark.parametrize(
    "shared_memory, where, spares",
    [(1, "needed", 1), (1, "settled", 0), (0, "early", 1)],
)
def test_a_sender_that_has_left_is_replaced_as_long_as_it_is_needed(
    tmp_path, shared_memory, where, spares
):
    program = ROOT / "tests" / "runtime" / "left_behind.py"
    env = {"FTRT_SHM": str(shared_memory)}
    options = ["-n", 2, "--spares", spares]
    ended = run_job(tmp_path, options, program, tmp_path, where, limit_s=30, env=env)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == spares
    assert ended.report["audit"]["consumed"] == ended.report["audit"]["sent"] == 12
    oracle = check_effects(tmp_path / "effects", {(1, "numbers", 0): 12})
    assert not oracle["duplicates"] and not oracle["losses"], oracle


@pytest.mark.parametrize("shared_memory", [1, 0])
def test_ranks_that_leave_what_the_other_sent_do_not_wait_for_each_other(tmp_path, shared_memory):
    program = tmp_path / "program.py"
    text = """
    with rt.sender("s", to=1 - rt.rank, replay=make) as out:
        out.send(make(1))
    rt.receiver("s", source=1 - rt.rank)
"""
    program.write_text(HEAD + text)
    env = {"FTRT_SHM": str(shared_memory)}
    ended = run_job(tmp_path, ["-n", 2], program, limit_s=30, env=env)
    assert ended.status == 1 and ended.report["audit"]["losses"] == 2, ended.output
    assert "the audit is not clean" in ended.output


def test_a_rank_paused_after_its_work_is_let_go_on(tmp_path):
    text = """
    if rt.rank == 1:
        import time
        time.sleep(2)
"""
    job(tmp_path, text, "--fault", "stop:0@1s+30s")


@pytest.mark.parametrize(
    "array",
    [
        np.array([(1, 2.5), (3, 4.5)], [("x", "i4"), ("y", "f8")]),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.array("2026-11-30", "M8[D]"),
        np.zeros((0, 4), np.float32),
    ],
)
def test_a_spool_keeps_the_dtype(tmp_path, array):
    spool = Spool(tmp_path, "s", 0, 1)
    spool.append(1, array)
    back = spool.read(1)
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes()
