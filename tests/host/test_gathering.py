"""Processes of one host agree through shared memory, whoever dies, is stopped or comes late."""

import hashlib
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection

import numpy as np
import pytest

from ftrt.errors import DeadlineExceeded, Fenced, InvariantBroken, UsageError
from ftrt.host.gathering import Gathering

FORK = multiprocessing.get_context("fork")
LIMIT_S = 30


def words_of(member, number):
    """What a member brings to a round: from none to eleven words."""
    return np.arange(number, number + (member + number) % 12, dtype=np.uint64) * (member + 1)


def take_part(path, me, rounds, told):
    """Take part; tell a digest of each outcome, then how it ended."""
    gathering = Gathering(path, me)
    try:
        for number in range(1, rounds + 1):
            gathering.agree(words_of(me, number), LIMIT_S)
            for member in gathering.present:
                assert (gathering.of(member) == words_of(member, number)).all()
            text = repr((number, gathering.present))
            told.send((number, hashlib.sha256(text.encode()).hexdigest(), gathering.present))
        told.send(("ended",))
    except Fenced:
        told.send(("fenced",))


class Group:
    """Real processes, ended at the end of the test whatever happens."""

    def __init__(self, path, members, rounds):
        Gathering.create(path, members, 12)
        self.path, self.outcomes, self.ends = path, [{} for _ in range(members)], {}
        self.processes, self.pipes = [], {}
        for member in range(members):  # a pipe each: who is killed may hold no lock of all
            reader, writer = FORK.Pipe(duplex=False)
            job = (path, member, rounds, writer)
            self.processes.append(FORK.Process(target=take_part, args=job, daemon=True))
            self.processes[-1].start()
            writer.close()
            self.pipes[reader] = member

    def collect(self, until):
        """Take news in until a condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < deadline, (self.ends, [len(o) for o in self.outcomes])
            for pipe in connection.wait(list(self.pipes), 1.0):
                try:
                    news = pipe.recv()
                except EOFError:
                    del self.pipes[pipe]
                    continue
                member = self.pipes[pipe]
                if len(news) == 1:
                    self.ends[member] = news[0]
                else:
                    self.outcomes[member][news[0]] = news[1:]

    def same(self):
        """All who learnt the outcome of a round learnt the same."""
        for number in set().union(*self.outcomes):
            assert len({o[number] for o in self.outcomes if number in o}) == 1


@pytest.fixture
def group(tmp_path):
    made = []

    def make(*arguments):
        made.append(Group(tmp_path / f"gathering{len(made)}", *arguments))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes:
            process.kill()
            process.join(LIMIT_S)


def test_everybody_gets_what_everybody_brought(group):
    five = group(5, 200)
    five.collect(lambda: len(five.ends) == 5)
    five.same()
    assert all(len(rounds) == 200 for rounds in five.outcomes)
    assert five.outcomes[3][200][1] == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("after", [0, 3, 40])
def test_a_death_in_any_instruction_leaves_one_outcome(group, after):
    four = group(4, 2000)
    four.collect(lambda: len(four.outcomes[1]) > after)
    os.kill(four.processes[1].pid, signal.SIGKILL)
    four.processes[1].join(LIMIT_S)
    Gathering(four.path, 0).lost(1)
    four.collect(lambda: set(four.ends) >= {0, 2, 3})
    four.same()
    assert all(len(four.outcomes[m]) == 2000 for m in (0, 2, 3))
    assert four.outcomes[0][2000][1] == (0, 2, 3)


def test_who_was_held_for_gone_though_it_lives_is_fenced(group):
    three = group(3, 2000)
    three.collect(lambda: len(three.outcomes[2]) > 5)
    os.kill(three.processes[2].pid, signal.SIGSTOP)
    Gathering(three.path, 0).lost(2)
    three.collect(lambda: set(three.ends) >= {0, 1})
    os.kill(three.processes[2].pid, signal.SIGCONT)
    three.collect(lambda: 2 in three.ends)
    three.same()
    assert three.ends == {0: "ended", 1: "ended", 2: "fenced"}


def test_who_neither_comes_nor_is_gone_is_named(tmp_path):
    path = tmp_path / "two"
    Gathering.create(path, 2, 4)
    first, second = Gathering(path, 0), Gathering(path, 1)
    looks = []
    with pytest.raises(DeadlineExceeded, match=r"members \[1\] did not come to round 1"):
        first.agree(np.array([7], np.uint64), 0.02, lambda: looks.append(1))
    assert looks
    other = threading.Thread(target=second.agree, args=(np.array([8], np.uint64), LIMIT_S))
    other.start()
    first.agree(np.array([9], np.uint64), LIMIT_S)  # what it brought the first time stays
    other.join(LIMIT_S)
    assert first.of(0) == second.of(0) == 7 and first.of(1) == second.of(1) == 8


def test_more_members_than_bits_of_a_word(tmp_path):
    path = tmp_path / "many"
    Gathering.create(path, 130, 1)
    ends = [Gathering(path, me) for me in (0, 70, 129)]
    assert len(ends[0].present) == 130
    for member in set(range(130)) - {0, 70, 129}:
        ends[0].lost(member)
    threads = [
        threading.Thread(target=end.agree, args=(np.array([end.me], np.uint64), LIMIT_S))
        for end in ends
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert all(end.present == (0, 70, 129) for end in ends)
    assert ends[1].of(129) == 129 and ends[1].of(5).size == 0


def test_what_cannot_be_is_refused(tmp_path):
    path = tmp_path / "one"
    for members, capacity in [(0, 1), (1 << 15, 1), (2, -1)]:
        with pytest.raises(UsageError, match="use 1 to"):
            Gathering.create(path, members, capacity)
    Gathering.create(path, 1, 2)
    with pytest.raises(UsageError, match="use 0 to 0"):
        Gathering(path, 1)
    with pytest.raises(UsageError, match="3 words do not fit"):
        Gathering(path, 0).agree(np.zeros(3, np.uint64))
    for wrong in (np.zeros(2), np.zeros((1, 1), np.uint64), np.zeros(4, np.uint64)[::2]):
        with pytest.raises(UsageError, match="contiguous 1-d array of uint64"):
            Gathering(path, 0).agree(wrong)
    path.write_bytes(bytes(4096))
    with pytest.raises(InvariantBroken, match="is no gathering"):
        Gathering(path, 0)
