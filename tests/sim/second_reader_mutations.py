"""Deliberate bugs of the core that a second reader chose, after all others were found."""

from dataclasses import replace

from ftrt.agree import steps
from ftrt.agree.marks import StreamMarks

from .mutations import mutation as register


def mutation(text):
    return register(text, "a second reader")


@mutation("what a process says while a record leaves it out counts")
def left_out_but_heard():
    real = steps._enter

    def _enter(now, *arguments):
        after, effects = real(now, *arguments)
        return replace(after, finished=now.finished), effects

    return [(steps, "_enter", _enter)]


@mutation("a record is taken for one of this attempt whatever attempt made it")
def any_attempt_will_do():
    real = steps.HANDLERS["found"]

    def found(now, event):
        attempt = (now.target or now.epoch).attempt
        return real(now, replace(event, epoch=replace(event.epoch, attempt=attempt)))

    return [(steps.HANDLERS, "found", found)]


@mutation("the marks of a record that is found are not taken")
def found_marks_are_not_taken():
    real = steps.HANDLERS["found"]

    def found(now, event):
        return real(now, replace(event, marks=None))

    return [(steps.HANDLERS, "found", found)]


@mutation("an answer to a closing that is behind us is taken for the one under way")
def an_old_answer_is_taken():
    real = steps.HANDLERS["closed"]

    def closed(now, event):
        return real(now, replace(event, epoch=now.epoch))

    return [(steps.HANDLERS, "closed", closed)]


@mutation("a host that is asked to close goes on")
def nobody_joins():
    return [(steps.HANDLERS, "asked", steps.ignored)]


@mutation("of two ledgers' highest number sent the lower one counts")
def the_lower_sent_counts():
    real = StreamMarks.merge

    def merge(self, other):
        sent = min(self.sent, other.sent) if self.sent and other.sent else self.sent + other.sent
        real(self, other)
        self.sent = sent

    return [(StreamMarks, "merge", merge)]


@mutation("a record whose members all died meanwhile shuts out their spares")
def spares_are_forgotten():
    real = steps.HANDLERS["found"]

    def found(now, event):
        members = {process for _, process in event.members}
        if not members & (now.acting.processes - now.dead):
            return steps._fenced(now, event.epoch)
        return real(now, event)

    return [(steps.HANDLERS, "found", found)]
