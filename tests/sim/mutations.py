"""Deliberate bugs, each of which the simulator must find. A checker that nobody has seen fail
proves nothing."""

from contextlib import contextmanager
from dataclasses import replace

from ftrt.agree import agreement, steps
from ftrt.agree import effects as fx
from ftrt.agree import events as ev
from ftrt.agree.marks import Marks, merged
from ftrt.agree.retention import Budget
from ftrt.sim import storage
from ftrt.sim.agent import Agent
from ftrt.sim.process import Process
from ftrt.sim.ring import Ring, RingSender
from ftrt.sim.wire import WireReceiver, WireSender

MUTATIONS = {}


def mutation(text, chosen_by="its author"):
    """Register a function that gives the patches of one bug: (owner, name, replacement).

    It was chosen by the author of the core, by who wrote down what is promised before there was a
    core, or by a reader of it (`reviewer_mutations.py`, `second_reader_mutations.py`).
    """

    def register(function):
        MUTATIONS[function.__name__] = (text, function, chosen_by)
        return function

    return register


@contextmanager
def switched_on(name):
    """Have a bug in the code for a while."""
    before = []
    try:
        for owner, key, new in MUTATIONS[name][1]():
            if isinstance(owner, dict):
                before.append((owner, key, owner[key]))
                owner[key] = new
            else:
                before.append((owner, key, owner.__dict__[key]))
                setattr(owner, key, new)
        yield
    finally:
        for owner, key, old in before:
            if isinstance(owner, dict):
                owner[key] = old
            else:
                setattr(owner, key, old)


@mutation("the coordinator decides without waiting for all reports", "the promises")
def decide_without_reports():
    real = agreement.advance

    def advance(now):
        if now.parent is not None:
            return real(now)
        record = agreement.AgreedRecord(now.epoch, now.me, now.live)
        after = replace(now, phase=agreement.Phase.RECORDING, record=record)
        return after, (agreement.TryRecord(record),)

    return [(agreement, "advance", advance)]


@mutation("who begins an agreement calls nobody in")
def nobody_is_called():
    def again(now, event):
        return agreement.advance(replace(now, told=None))

    row = agreement.TRANSITIONS[agreement.Phase.GATHERING, agreement.Tick]
    key = (agreement.Phase.GATHERING, agreement.Tick)
    return [(agreement.TRANSITIONS, key, (again, row[1]))]


@mutation(
    "after a receiver's death the sender sends again from consumed, not from stable", "the promises"
)
def resend_from_consumed():
    return [(Budget, "receiver_replaced", lambda self: self.resend_set("survivor"))]


@mutation(
    "a message is acknowledged when it arrives, before the record of its consumption",
    "the promises",
)
def acknowledge_before_commit():
    real = WireReceiver.tell

    def tell(self):
        honest = self.marks
        self.marks = honest.copy()
        for seq in self.buffer:
            self.marks.add(seq)
        real(self)
        self.marks = honest

    def on_message(self, *packet):
        real_on_message(self, *packet)
        self.tell()

    real_on_message = WireReceiver.on_message
    return [(WireReceiver, "tell", tell), (WireReceiver, "on_message", on_message)]


@mutation("a receiver takes messages of any epoch", "the promises")
def skip_the_epoch_check():
    real = Process.on_message

    def on_message(self, index, seq, count, epoch, sender):
        shown = self.epoch
        for receiver in self.receivers:
            if self.alive and not self.over and receiver.stream.number == index:
                receiver.on_message(seq, count, epoch, sender)
                return
        real(self, index, seq, count, shown, sender)

    return [(Process, "on_message", on_message)]


@mutation("retention is freed by consumed instead of stable", "the promises")
def free_retention_early():
    real = WireSender.on_marks

    def on_marks(self, epoch, consumed, stable, news):
        real(self, epoch, consumed, consumed, news)

    return [(WireSender, "on_marks", on_marks)]


@mutation("credit is freed by stable instead of consumed")
def credit_waits_for_stable():
    credit = property(lambda self: self.window - (self._counts[0] - self._counts[2]))
    return [(Budget, "credit_left", credit)]


@mutation("a second record of an epoch replaces the first")
def records_are_not_exclusive():
    def create(self, record):
        self.put(record)
        return True

    return [(storage.Storage, "create", create)]


@mutation("a closed ledger still takes commits")
def commit_after_close():
    def append(self, stream, seq, count, value):
        self.events.append((stream, seq, count, value))

    return [(storage.Ledger, "append", append)]


@mutation("a record has the marks of the last epoch only")
def marks_of_the_last_epoch_only():
    return [(steps, "merged", lambda *tables: merged(tables[-1]))]


@mutation("the epoch is published before its record exists")
def publish_before_the_record():
    real = steps.HANDLERS["closed"]

    def closed(now, event):
        after, effects = real(now, event)
        if after.state is ev.State.RECORDING and after.target is not None:
            effects = (fx.Publish(after.target), *effects)
        return after, effects

    return [(steps.HANDLERS, "closed", closed)]


@mutation("what a dead sender had recorded counts as delivered")
def recorded_counts_as_delivered():
    real = Ring.seal
    return [(Ring, "seal", lambda self: real(self) + 1)]


@mutation("a ring takes one frame more than it has slots")
def a_ring_overflows():
    real = Ring.__init__

    def init(self, slots):
        real(self, slots + 1)

    return [(Ring, "__init__", init)]


@mutation("a new sender goes on behind what its predecessor recorded as sent")
def go_on_behind_what_was_sent():
    real = RingSender.__init__

    def init(self, process, stream, record):
        real(self, process, stream, record)
        entry = record.marks.get(stream.key)
        if entry is not None and self.spool is None:
            self.next_seq = max(self.next_seq, entry.sent + 1)

    return [(RingSender, "__init__", init)]


@mutation("who finds somebody else's record keeps its own decision")
def own_decision_wins():
    real = steps.HANDLERS["found"]

    def found(now, event):
        after, effects = real(now, event)
        if now.decision is not None and after.state is ev.State.PUBLISHING:
            after = replace(after, membership=now.decision.membership)
        return after, effects

    return [(steps.HANDLERS, "found", found)]


@mutation("a death while an epoch is published is forgotten")
def deaths_while_publishing_are_forgotten():
    real = steps.HANDLERS["published"]

    def published(now, event):
        after, effects = real(replace(now, dead=frozenset()), event)
        return replace(after, dead=now.dead), effects

    return [(steps.HANDLERS, "published", published)]


@mutation("stable is announced before the sync is through")
def stable_before_the_sync():
    def sync(self, rank, then, *args):
        self.world.after(0, then, *args)
        if self.world.plan.stable == "process":
            self.ledgers[rank].write(len(self.ledgers[rank].events))

    return [(Process, "sync", sync)]


@mutation("a dead spare is promoted")
def promote_a_dead_spare():
    real = steps.plan_members

    def plan_members(membership, dead, finished=()):
        return real(membership, set(dead) - set(membership.spares), finished)

    return [(steps, "plan_members", plan_members)]


@mutation("a mark above a gap swallows the gap")
def gaps_are_swallowed():
    def insert(self, start, end):
        self.hwm, self._starts, self._ends = end, [], []
        return 0

    return [(Marks, "_insert", insert)]


@mutation("only the ledgers of the dead are closed")
def close_the_dead_only():
    def close(now):
        after, (closing,) = real(now)
        return after, (replace(closing, ranks=now.lost),)

    real = steps._close
    return [(steps, "_close", close)]


@mutation("who frees a spool is not asked for its epoch")
def the_spool_has_no_fence():
    def free(self, upto, epoch):
        self.freed = max(self.freed, upto)

    return [(storage.Spool, "free", free)]


@mutation("a sender hears of stable marks after its own ledger was closed")
def marks_are_heard_after_the_closing():
    real = WireSender.on_marks

    def on_marks(self, epoch, consumed, stable, news):
        ledger = self.process.ledgers[self.stream.source]
        closed, ledger.closed = ledger.closed, False
        real(self, epoch, consumed, stable, news)
        ledger.closed = closed

    return [(WireSender, "on_marks", on_marks)]


@mutation("what an agent seals it has not written yet")
def seal_what_is_not_written():
    def close_ledger(self, epoch, rank, marks):
        ledger = self.world.storage.ledger(epoch, rank)
        if ledger.home in (-1, self.host):
            ledger.closed = True
        self.seal(ledger, len(ledger.events), marks)

    return [(Agent, "close_ledger", close_ledger)]


@mutation("agents tell each other marks that they read before the closing")
def tell_what_was_read_before():
    real = Agent.close_ledger

    def close_ledger(self, epoch, rank, marks):
        ledger = self.world.storage.ledger(epoch, rank)
        before = len(ledger.events) - (0 if self.alone else 1)
        real(self, epoch, rank, {})
        storage.marks_of(self.world, ledger, max(0, before), marks)

    return [(Agent, "close_ledger", close_ledger)]


@mutation("a record of the power class is not synced")
def records_are_not_synced():
    real = storage.Storage.put

    def put(self, record):
        record.durable = record.epoch.counter == 1
        real(self, record)

    return [(storage.Storage, "put", put)]


@mutation("an older attempt's record is taken for our own")
def an_older_attempt_is_not_overtaken():
    def overtake(now, event, theirs):
        promotions = tuple(theirs.members)
        return steps._enter(now, event.epoch, theirs, promotions)

    return [(steps, "_overtake", overtake)]
