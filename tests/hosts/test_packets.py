"""The agreement's messages as bytes, and the register of what was decided."""

import random

import pytest

from ftrt.agree.agreement import AgreedRecord, Announce, Call, Report
from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Told
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.errors import InvariantBroken, LedgerDamaged, LedgerError
from ftrt.hosts.packets import decode, encode, head_of, told_of
from ftrt.hosts.register import Register

EPOCH = EpochId("job", 3, 41)
AGENTS = tuple(range(40))


def messages():
    """Draw messages of every kind."""
    dice = random.Random(5)
    for _ in range(50):
        some = frozenset(dice.sample(AGENTS, dice.randrange(40)))
        yield Report(7, some)
        yield Call(7)
        made = EpochId("job", dice.choice((2, 3)), 41)
        yield Announce(7, AgreedRecord(made, 4, tuple(sorted(some | {4}))))
        table = {}
        for number in range(dice.randrange(4)):
            key = (f"ström {number}", dice.randrange(9), dice.randrange(99))
            ranges = [(n, n + dice.randrange(3)) for n in range(200, 1000, 37)]
            marks = Marks(dice.randrange(1 << 40), dice.sample(ranges, dice.randrange(9)))
            table[key] = StreamMarks(*key, marks, dice.randrange(1 << 60), 5, 6)
        yield Told(7, EPOCH, table)


def test_what_is_sent_is_what_arrives():
    for message in messages():
        data = encode(message, 7, EPOCH, AGENTS)
        assert head_of(data) == (7, 3, 41)
        assert decode(data, "job", AGENTS) == message
        if isinstance(message, Told):
            some = {key: entry for key, entry in message.marks.items() if {3, 4, 50} & {*key[1:]}}
            assert told_of(data, "job", {3, 4, 50}) == Told(7, EPOCH, some)


def test_what_is_no_message_is_refused():
    key = ("s", 0, 1)
    told = encode(Told(7, EPOCH, {key: StreamMarks(*key, Marks(3, [(5, 6)]))}), 7, EPOCH)
    for length in set(range(len(told))) - {24}:
        with pytest.raises(InvariantBroken):
            decode(told[:length], "job", AGENTS)
        with pytest.raises(InvariantBroken):
            told_of(told[:length], "job", {0})
    with pytest.raises(InvariantBroken, match="of no kind"):
        decode(b"\x09" + told[1:], "job", AGENTS)
    with pytest.raises(InvariantBroken, match="has no marks"):
        told_of(encode(Call(7), 7, EPOCH), "job", {0})
    report = encode(Report(7, frozenset((1, 2))), 7, EPOCH)
    with pytest.raises(InvariantBroken, match="damaged"):
        decode(report[:-4], "job", AGENTS)


def test_the_first_record_stays(tmp_path):
    register = Register(tmp_path)
    mine = AgreedRecord(EPOCH, 0, (0, 1, 2, 5, 9))
    assert register.create(mine) == mine
    older = AgreedRecord(EpochId("job", 2, 41), 1, (1,))
    assert register.create(older) == mine == Register(tmp_path).read(EPOCH)
    next_one = AgreedRecord(EPOCH.next(), 1, (1, 2))
    assert register.create(next_one) == next_one
    register.forget(EPOCH)
    with pytest.raises(LedgerDamaged, match="no record of an agreement"):
        register.read(EPOCH)


def test_a_register_that_cannot_be_used_is_named(tmp_path):
    record = AgreedRecord(EPOCH, 0, (0, 1))
    with pytest.raises(LedgerError, match="No such file"):
        Register(tmp_path / "missing").create(record)
    with pytest.raises(LedgerError, match="too many pieces"):
        Register(tmp_path).create(AgreedRecord(EPOCH, 0, tuple(range(0, 2000, 2))))
    (tmp_path / "job-41").symlink_to("anything")
    with pytest.raises(LedgerDamaged):
        Register(tmp_path).create(record)
