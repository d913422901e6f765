"""Deliberate bugs that were chosen by whoever read the core, not by whoever wrote it."""

from dataclasses import replace

from ftrt.agree import agreement, steps
from ftrt.agree import effects as fx
from ftrt.agree.epoch import Decision, Membership, Outcome
from ftrt.agree.events import State
from ftrt.agree.exchange import Exchange
from ftrt.agree.marks import Marks
from ftrt.agree.retention import Budget
from ftrt.sim.process import Process
from ftrt.sim.ring import Ring, RingReceiver, RingSender
from ftrt.sim.storage import Ledger
from ftrt.sim.wire import WireReceiver, WireSender

from .mutations import mutation as register


def mutation(text):
    return register(text, "a reader")


@mutation("a death while the ledgers are being closed is forgotten")
def deaths_while_closing_are_forgotten():
    real = steps.HANDLERS["died"]

    def died(now, event):
        after, effects = real(now, event)
        return (now, effects) if now.state is State.CLOSING else (after, effects)

    return [(steps.HANDLERS, "died", died)]


@mutation("nobody tells a spare that it has a rank now")
def promotions_are_not_told():
    real = steps.HANDLERS["created"]

    def created(now, event):
        after, effects = real(now, event)
        return after, tuple(e for e in effects if not isinstance(e, fx.Promote))

    return [(steps.HANDLERS, "created", created)]


@mutation("a host that the record leaves out goes on")
def left_out_but_going_on():
    def adopt(now, event):
        after, effects = real(now, event)
        if after.phase is agreement.Phase.FENCED:
            after = replace(after, phase=agreement.Phase.ADOPTED)
            effects = (agreement.Adopt(event.record), *effects[1:])
        return after, effects

    real = agreement.adopt
    rows = agreement.TRANSITIONS
    return [(rows, key, (adopt, row[1])) for key, row in rows.items() if row[0] is real]


@mutation("the job ends with the first rank that is done")
def the_first_ends_the_job():
    complete = property(lambda self: bool(self.finished))
    return [(steps.Situation, "complete", complete)]


@mutation("the record has processes of hosts that did not report")
def silent_hosts_are_members():
    real = steps.HANDLERS["closed"]

    def closed(now, event):
        return real(now, replace(event, left_out=()))

    return [(steps.HANDLERS, "closed", closed)]


@mutation("merged marks lose what is above the gap")
def merging_loses_ranges():
    def merge(self, other):
        self.hwm = max(self.hwm, other.hwm)

    return [(Marks, "merge", merge)]


@mutation("the last gap of the marks is overlooked")
def the_last_gap_is_overlooked():
    real = Marks.missing

    def missing(self, upto, since=1):
        return real(self, upto, since)[:-1] if self._starts else real(self, upto, since)

    return [(Marks, "missing", missing)]


@mutation("only credit limits a sender, not what it keeps")
def retention_limits_nobody():
    can_send = lambda self, length=1: length <= self.credit_left  # noqa: E731
    return [(Budget, "can_send", can_send)]


@mutation("a sender that takes over counts what the record has against its window")
def successor_has_no_credit():
    real = Budget.go_on_from

    def go_on_from(self, have):
        real(self, have)
        self._counts = [have.count, 0, have.count]

    return [(Budget, "go_on_from", go_on_from)]


@mutation("after a receiver's death the credit of what it had consumed stays free")
def credit_stays_free():
    def receiver_replaced(self):
        ranges = self.resend_set("receiver_died")
        self.consumed = self.stable.copy()
        return ranges

    return [(Budget, "receiver_replaced", receiver_replaced)]


@mutation("where spares are short the rank is dropped")
def a_lost_rank_is_dropped():
    real = steps.plan_members

    def plan_members(membership, dead, finished=()):
        plan = real(membership, dead, finished)
        if plan.outcome is not Outcome.FAILED:
            return plan
        kept = tuple(pair for pair in membership.members if pair[1] not in set(dead))
        return Decision(Outcome.CONTINUED, Membership(kept), (), "the others go on")

    return [(steps, "plan_members", plan_members)]


@mutation("an agent reports the names of its children, not of all below them")
def only_children_are_reported():
    def _collected(now, event):
        return replace(now, have=now.have | {event.sender})

    return [(agreement, "_collected", _collected)]


@mutation("a host tells high-water marks only")
def only_high_water_is_told():
    real = Exchange.begin

    def begin(self):
        found = []
        for to, told in real(self):
            marks = {k: replace(v, marks=Marks(v.marks.hwm)) for k, v in told.marks.items()}
            found.append((to, replace(told, marks=marks)))
        return found

    return [(Exchange, "begin", begin)]


@mutation("a slot is given back when its message is read, before the commit")
def released_before_the_commit():
    real = RingReceiver._poll

    def poll(self):
        real(self)
        opened, self.open = self.open, set()
        self._release()
        self.open = opened

    return [(RingReceiver, "_poll", poll)]


@mutation("a sealed ring takes more from its old sender")
def a_seal_does_not_hold():
    real = Ring.seal

    def seal(self):
        upto = real(self)
        self.sealed = None
        return upto

    return [(Ring, "seal", seal)]


@mutation("a number leaves before the ledger has it")
def sent_before_it_is_recorded():
    return [(Ledger, "record_sent", lambda self, stream, seq: None)]


@mutation("what comes twice is consumed twice")
def duplicates_are_taken():
    def on_message(self, first, count, epoch, sender):
        self.buffer.extend(range(first, first + count))
        self.process.wake()

    return [(WireReceiver, "on_message", on_message)]


@mutation("a successor begins with an empty state")
def state_is_not_restored():
    real = Process._adopt

    def adopt(self):
        fresh = self.epoch == 0
        real(self)
        if fresh:
            self.state = {}

    return [(Process, "_adopt", adopt)]


@mutation("nothing is sent again to a receiver that was replaced")
def nothing_is_sent_again():
    def again(self, ranges):
        return None

    return [(WireSender, "_again", again)]


@mutation("a sender that takes over sends only what is new")
def successor_sends_only_new():
    real = RingSender.__init__

    def init(self, process, stream, record):
        real(self, process, stream, record)
        self.todo.clear()

    return [(RingSender, "__init__", init)]
