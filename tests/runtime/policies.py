"""Policies for heirs, good and bad."""

import os
import time


def lowest(lost, living, streams):
    """Give all to the lowest consumer."""
    consumers = {dest for _, _, dest in streams}
    heir = min(rank for rank in living if rank in consumers)
    return dict.fromkeys(lost, heir)


def a_dead_one(lost, living, streams):
    return dict.fromkeys(lost, lost[0])


def raises(lost, living, streams):
    raise ValueError("I cannot choose")


def hangs(lost, living, streams):
    time.sleep(1000)


def leaves(lost, living, streams):
    os._exit(7)


def nonsense(lost, living, streams):
    print("this is no answer")
    return 5
