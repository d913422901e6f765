"""A host played in memory: it does each effect at once and checks the promised order."""

from collections import deque

from ftrt.agree import effects as ef
from ftrt.agree import events as ev
from ftrt.agree.epoch import EpochId, Membership
from ftrt.agree.heirs import Heirs
from ftrt.agree.marks import StreamMarks
from ftrt.agree.recovery import Recovery


class Host:
    """Runs a Recovery against a dict of records; `records` may be shared between hosts."""

    def __init__(self, ranks, spares=0, restarts=0, records=None, attempt=1, **shrinking):
        self.recovery = Recovery(
            EpochId("job", attempt, 1),
            Membership.initial(ranks, spares),
            restarts=restarts,
            least=shrinking.get("least", 0),
        )
        self.willing = shrinking.get("willing", range(ranks + spares))
        self.policy = shrinking.get("policy")
        self.inherited = {}
        for stream in shrinking.get("streams", ()):
            self.recovery.marks[stream] = StreamMarks(*stream)
        self.records = {1: self.recovery.membership} if records is None else records
        self.closed, self.published, self.inbox = set(), {1}, deque()
        self.killed, self.acting, self.log, self.marks = [], {}, [], {}
        self.end = None
        self.steps = 0

    def tell(self, event):
        """Hand one event over and do what it asks for."""
        self.steps += 1
        for effect in self.recovery.handle(event):
            assert self.end is None, f"{effect} came after {self.end}"
            self.log.append(effect)
            getattr(self, "do_" + type(effect).__name__)(effect)

    def step(self):
        """Hand the oldest answer over, if there is one."""
        if self.inbox:
            self.tell(self.inbox.popleft())
        return bool(self.inbox)

    def settle(self):
        """Hand all answers over."""
        for _ in range(100):
            if not self.inbox:
                return
            self.step()
        raise RuntimeError("this recovery does not come to an end")

    def die(self, process, by="pidfd"):
        """Tell of a death."""
        self.tell(ev.ProcessDied(process, by))

    def do_Kill(self, effect):
        self.killed.append(effect.process)

    def do_Note(self, effect):
        assert effect.text

    def do_CloseLedgers(self, effect):
        assert effect.epoch.counter in self.records
        self.closed.add(effect.epoch.counter)
        chosen = self.policy and tuple(self.policy.items())
        heirs = Heirs(frozenset(self.willing) - self.recovery.now.dead, chosen)
        self.inbox.append(ev.LedgersClosed(effect.epoch, self.marks, heirs=heirs))

    def do_CreateRecord(self, effect):
        assert effect.parent.counter in self.closed
        assert effect.epoch.counter == effect.parent.counter + 1
        if effect.epoch.counter in self.records:
            found = self.records[effect.epoch.counter]
            self.inbox.append(ev.RecordFound(effect.epoch, found.members, found.spares))
            return
        self.records[effect.epoch.counter] = Membership(effect.members, effect.spares)
        self.inbox.append(ev.RecordCreated(effect.epoch))

    def do_Publish(self, effect):
        assert effect.epoch.counter in self.records
        self.published.add(effect.epoch.counter)
        self.inbox.append(ev.EpochPublished(effect.epoch))

    def do_Promote(self, effect):
        assert effect.epoch.counter in self.published
        assert (effect.rank, effect.process) in self.records[effect.epoch.counter].members
        self.acting[effect.rank] = effect.process

    def do_Inherit(self, effect):
        assert effect.epoch.counter in self.published
        assert (effect.rank, effect.process) in self.records[effect.epoch.counter].members
        self.inherited[effect.rank] = effect.process

    def do_Fail(self, effect):
        self.end = effect

    def do_End(self, effect):
        assert effect.epoch.counter in self.published
        self.end = effect


def names(host):
    """Return the kinds of effects so far, notes left out."""
    return [type(effect).__name__ for effect in host.log if not isinstance(effect, ef.Note)]


def told(host):
    """Tell what the host did, a line an effect, as a reviewer would."""
    return "\n".join(_line(effect) for effect in host.log)


def _line(effect):
    name = type(effect).__name__
    if isinstance(effect, ef.Note):
        return f"             # {effect.text}"
    shown = ("process", "rank", "ranks", "members", "spares", "dead")
    parts = [f"{key}={vars(effect)[key]}" for key in shown if key in vars(effect)]
    epoch = f"epoch {effect.epoch.counter}" if hasattr(effect, "epoch") else ""
    return " ".join(filter(None, [f"{name:12}", epoch, *parts])).rstrip()
