"""Marks go to those whom they concern, and to nobody else."""

import random

import pytest

from ftrt.agree.epoch import EpochId
from ftrt.agree.exchange import Exchange, Told
from ftrt.agree.marks import Marks, StreamMarks, merged
from ftrt.errors import InvariantBroken

EPOCH = EpochId("job", 1, 2)


def job(seed, ranks=9, hosts=4, streams=20):
    """Draw streams between ranks of several hosts; what each host's closed ledgers hold."""
    dice = random.Random(seed)
    home = {rank: rank % hosts for rank in range(ranks)}
    tables = {host: {} for host in range(hosts)}
    for number in range(streams):
        source, dest = dice.sample(range(ranks), 2)
        key = (f"s{number}", source, dest)
        consumed = Marks(dice.randrange(50), [(60, 60 + dice.randrange(5))])
        tables[home[source]][key] = StreamMarks(*key, sent=70)
        tables[home[dest]].setdefault(key, StreamMarks(*key)).merge(StreamMarks(*key, consumed))
        if home[source] == home[dest]:
            tables[home[source]][key] = StreamMarks(*key, consumed, 70)
    return home, tables


def exchanges(home, tables):
    return {host: Exchange(host, EPOCH, table, home) for host, table in tables.items()}


@pytest.mark.parametrize("seed", range(20))
def test_each_end_gets_what_all_together_know_of_its_streams(seed):
    home, tables = job(seed)
    agents = exchanges(home, tables)
    packets = [(to, told) for agent in agents.values() for to, told in agent.begin()]
    random.Random(seed).shuffle(packets)
    for to, told in packets * 2:  # whatever comes twice changes nothing
        assert all(to in (home[key[1]], home[key[2]]) for key in told.marks)
        agents[to].handle(told)
    everything = merged(*tables.values())
    for host, agent in agents.items():
        mine = {k: v for k, v in everything.items() if host in (home[k[1]], home[k[2]])}
        assert agent.lacks(range(4)) == [] and agent.result() == mine
    assert len(packets) <= sum(len(agent.others) for agent in agents.values())


def test_who_died_before_it_told_is_named_and_its_ledger_read():
    home, tables = job(1)
    agents = exchanges(home, tables)
    for agent in agents.values():
        for to, told in agent.begin():
            if told.sender != 2:
                agents[to].handle(told)
    assert agents[0].lacks(range(4)) == [2] and agents[0].lacks([1, 3]) == []
    with pytest.raises(InvariantBroken, match=r"agents \[2\] have not come"):
        agents[0].result()
    for to, told in Exchange(2, EPOCH, tables[2], home).begin():  # by whoever reads the ledger
        agents[to].handle(told)
    assert agents[0].result()


def test_what_cannot_be_is_refused_and_changes_nothing():
    home = {0: 0, 1: 1, 2: 2}
    key, other = ("s", 0, 1), ("t", 1, 2)
    agent = Exchange(0, EPOCH, {key: StreamMarks(*key, sent=3)}, home)
    told = {key: StreamMarks(*key, Marks(2))}
    agent.handle(Told(1, EPOCH, told))
    for message, why in [
        (Told(1, EPOCH.next(), told), "came to epoch"),
        (Told(1, EPOCH, {key: StreamMarks(*key, Marks(3))}), "two things"),
        (Told(2, EPOCH, {other: StreamMarks(*other)}), "which has no end"),
    ]:
        with pytest.raises(InvariantBroken, match=why):
            agent.handle(message)
    assert agent.result()[key] == StreamMarks(*key, Marks(2), 3)
