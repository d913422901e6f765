"""The hosts' agreement under a seeded scheduler: reordering, crashes, wrong suspicions."""

import random

import pytest

from ftrt.agree.agreement import (
    EVENTS,
    TRANSITIONS,
    Adopt,
    AgreedRecord,
    Agreement,
    Announce,
    Call,
    Cleared,
    Died,
    Fence,
    Phase,
    RecordCreated,
    RecordFound,
    Report,
    Send,
    Tick,
    TryRecord,
)
from ftrt.agree.epoch import EpochId
from ftrt.agree.tree import Tree, runs
from ftrt.errors import InvariantBroken

EPOCH = EpochId("job", 1, 2)
SETTLED = (Phase.ADOPTED, Phase.FENCED)


class World:
    """Agents, what is under way between them, and the one place for the record."""

    def __init__(self, count, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.agents = {a: Agreement(a, range(count), EPOCH) for a in range(count)}
        self.pool = [(a, a, Tick()) for a in range(count)]
        self.crashed, self.wrong, self.adopted = set(), set(), {}
        self.record, self.tries, self.sent = None, 0, 0

    def step(self):
        """Let one thing happen, any of those that can."""
        sender, to, what = self.pool.pop(self.random.randrange(len(self.pool)))
        if isinstance(what, TryRecord):
            # It may be done although the agent is dead by now: its last request was under way.
            if sender not in self.crashed or self.random.random() < 0.5:
                self.try_record(sender, what.record)
        elif to not in self.crashed:
            self.tell(to, what)

    def try_record(self, agent, record):
        self.tries += 1
        answer = RecordCreated(record) if self.record is None else RecordFound(self.record)
        self.record = self.record or record
        self.pool.append((agent, agent, answer))

    def tell(self, agent, event):
        for effect in self.agents[agent].handle(event):
            if isinstance(effect, Send):
                self.sent += 1
                assert not isinstance(effect.message, Announce) or self.record is not None
                self.pool.append((agent, effect.to, effect.message))
            elif isinstance(effect, TryRecord):
                self.pool.append((agent, agent, effect))
            else:
                assert isinstance(effect, Adopt | Fence) and agent not in self.adopted
                self.adopted[agent] = effect.record
                assert effect.record == self.record, f"seed {self.seed}: not the record"

    def crash(self, agent):
        """End an agent; some of what it sent is lost. The others hear of it some time."""
        self.crashed.add(agent)
        self.pool = [m for m in self.pool if m[0] != agent or self.random.random() < 0.5]
        self.pool += [(a, a, Died(agent)) for a in self.agents if a not in self.crashed]

    def suspect(self, by, agent):
        """Let the detector be wrong; it takes that back in `heal`."""
        self.wrong.add((by, agent))
        self.tell(by, Died(agent))

    def heal(self):
        """From here on the detector is right."""
        for by, agent in sorted(self.wrong):
            if by not in self.crashed and agent not in self.crashed:
                self.pool.append((by, by, Cleared(agent)))
        self.wrong.clear()

    def settle(self):
        """Run until nothing is under way, then check what was promised."""
        self.heal()
        for _ in range(5000):
            if not self.pool:
                break
            self.step()
        assert not self.pool, f"seed {self.seed}: it does not come to an end"
        assert len({id(record) for record in self.adopted.values()}) <= 1
        for agent, machine in self.agents.items():
            if agent in self.crashed:
                continue
            assert machine.phase in SETTLED, f"seed {self.seed}: {agent} is {machine.phase}"
            inside = agent in self.record.members
            assert (machine.phase is Phase.ADOPTED) == inside and machine.record == self.record


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_without_faults_everybody_is_in_and_few_messages_are_sent(count):
    for seed in range(10):
        world = World(count, seed)
        world.settle()
        assert world.record.members == tuple(range(count)) and world.tries == 1
        assert world.record.coordinator == 0
        # On each edge of the tree a call and an announcement down and one report up, two where
        # the first Tick comes after the children's reports.
        assert world.sent <= 4 * (count - 1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_crash_of_anyone_at_every_step(count):
    for seed in range(8):
        for victim in range(count):
            for moment in range(8 * count):
                world = World(count, seed)
                for _ in range(moment):
                    if world.pool:
                        world.step()
                world.crash(victim)
                world.settle()


def test_coordinators_die_one_after_the_other():
    for seed in range(150):
        world = World(5, seed)
        for victim in range(4):
            for _ in range(world.random.randrange(6)):
                if world.pool:
                    world.step()
            world.crash(victim)
        world.settle()


@pytest.mark.parametrize("count", [2, 4, 7])
def test_random_schedules_with_crashes_and_wrong_suspicions(count):
    rivals = 0
    for seed in range(250):
        world = World(count, seed)
        for _ in range(world.random.randrange(12 * count)):
            dice = world.random.random()
            alive = [a for a in range(count) if a not in world.crashed]
            if dice < 0.08 and len(alive) > 1:
                world.crash(world.random.choice(alive))
            elif dice < 0.25:
                by, other = world.random.choice(alive), world.random.randrange(count)
                if by != other:
                    world.suspect(by, other)
            elif world.pool:
                world.step()
        world.settle()
        rivals += world.tries > 1
    assert rivals > 10  # several coordinators tried, so the arbiter had something to decide


def test_what_is_lost_is_sent_again():
    for seed in range(60):
        world = World(5, seed)
        for _ in range(30):
            lost = [m for m in world.pool if isinstance(m[2], Report | Announce)]
            if lost and world.random.random() < 0.5:
                world.pool.remove(world.random.choice(lost))
            elif world.pool:
                world.step()
        for _ in range(5):  # who still waits asks again; who knows already only answers
            waiting = [a for a, m in world.agents.items() if m.phase is Phase.GATHERING]
            world.pool += [(a, a, Tick()) for a in waiting]
            while world.pool:
                world.step()
        world.settle()


def test_who_has_adopted_tells_who_asks():
    it = machine(Phase.ADOPTED)
    assert it.handle(Report(1, frozenset())) == (Send(1, Announce(0, it.record)),)


def test_one_that_begins_brings_all_in():
    for count in (2, 4, 9):
        for first in range(count):
            world = World(count, first)
            world.pool = [(first, first, Tick())]
            begun = {first}
            for _ in range(2000):
                if not world.pool:
                    break
                sender, to, what = world.pool.pop(world.random.randrange(len(world.pool)))
                if to not in begun:
                    # A host begins with the first message that it gets of an agreement.
                    begun.add(to)
                    world.tell(to, Tick())
                if isinstance(what, TryRecord):
                    world.try_record(sender, what.record)
                else:
                    world.tell(to, what)
            assert begun == set(range(count)) == set(world.record.members)
            assert all(m.phase is Phase.ADOPTED for m in world.agents.values())
            assert world.tries == 1


def test_a_call_is_answered_with_what_is_decided():
    it = machine(Phase.ADOPTED)
    assert it.handle(Call(1)) == (Send(1, Announce(0, it.record)),)


def test_an_even_split_has_one_history():
    for seed in range(40):
        world = World(4, seed)
        for by in range(4):
            for other in range(4):
                if (by < 2) != (other < 2):
                    world.suspect(by, other)
        while world.pool and len(world.adopted) < 4:
            world.step()
        world.settle()
        assert world.record.members in ((0, 1), (2, 3), (0, 1, 2, 3))


def machine(phase):
    """Bring agent 0 of two into a phase."""
    it = Agreement(0, [0, 1], EPOCH)
    if phase is not Phase.GATHERING:
        (attempt,) = it.handle(Report(1, frozenset((1,))))
    if phase is Phase.ADOPTED:
        it.handle(RecordCreated(attempt.record))
    if phase is Phase.FENCED:
        it.handle(RecordFound(AgreedRecord(EPOCH, 1, (1,))))
    assert it.phase is phase
    return it


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", EVENTS)
def test_every_pair_of_the_table(phase, event):
    it = machine(phase)
    record = it.now.record or AgreedRecord(EPOCH, 1, (0, 1))
    content = {
        Tick: (),
        Died: (1,),
        Cleared: (1,),
        Report: (1, frozenset()),
        Call: (1,),
        Announce: (1, record),
    }
    sample = event(*content.get(event, (record,)))
    before = it.now
    if (phase, event) in TRANSITIONS:
        it.handle(sample)
        assert it.phase in TRANSITIONS[phase, event][1]
    else:
        with pytest.raises(InvariantBroken, match=f"{event.__name__} came to agent 0"):
            it.handle(sample)
        assert it.now is before


@pytest.mark.parametrize(
    ("phase", "event", "why"),
    [
        (Phase.ADOPTED, Announce(1, AgreedRecord(EPOCH, 1, (0, 1))), "two records"),
        (Phase.RECORDING, RecordCreated(AgreedRecord(EPOCH, 1, (0, 1))), "did not ask"),
        (Phase.GATHERING, Announce(1, AgreedRecord(EPOCH.next(), 1, (0, 1))), "instead of"),
        (Phase.GATHERING, Died(7), "not one of"),
    ],
)
def test_what_must_never_be_is_refused(phase, event, why):
    it = machine(phase)
    before = it.now
    with pytest.raises(InvariantBroken, match=why):
        it.handle(event)
    assert it.now is before


def test_a_later_attempts_record_fences():
    it = machine(Phase.RECORDING)
    it.handle(RecordFound(AgreedRecord(EpochId("job", 2, 2), 0, (0, 1))))
    assert it.phase is Phase.FENCED


def test_a_stranger_cannot_take_part():
    with pytest.raises(InvariantBroken, match="not one of"):
        Agreement(3, [0, 1], EPOCH)


def test_a_tree_is_shared_and_turned():
    tree = Tree(tuple(range(7)))
    assert tree.below(1) == {1, 3, 4} and tree.parent(4) == 1 and tree.children(2) == (5, 6)
    without = tree.turned(1)
    assert without is tree.turned(1) and without.live == (0, 2, 3, 4, 5, 6)
    assert without.parent(4) == 2 and without.turned(1).live == tree.live
    one, two = Agreement(3, tree, EPOCH), Agreement(4, tree, EPOCH)
    one.handle(Died(1))
    two.handle(Died(1))
    assert one.now.tree is two.now.tree is without
    one.handle(Died(3))  # nobody is dead to itself
    assert one.now.tree is without


@pytest.mark.parametrize("size", [1, 2, 7, 30, 100])
def test_a_subtree_is_a_range_on_each_level(size):
    tree = Tree(tuple(range(size)))
    for agent in range(size):
        below = tree.below(agent)
        assert len(runs(below)) <= max(1, size.bit_length())
        assert {a for first, last in runs(below) for a in range(first, last + 1)} == below
    assert runs([]) == [] and runs([4, 3, 9]) == [(3, 4), (9, 9)]
