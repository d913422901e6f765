"""A process that SIGSTOP holds inside a commit while its epoch is closed, and what it does then."""

import os
import signal

import pytest
from kill_points import open_commit
from ledger_support import make_directory, open_ledger, start_child
from test_crash import committed

from ftrt.ledger import steps
from ftrt.ledger.log import CONSUMED, LedgerClosed
from ftrt.ledger.pool import LedgerPool

BEFORE = 5


class StopAt:
    """Stops this process where it passes ``point`` once :attr:`armed`."""

    def __init__(self, point: str):
        self.point, self.armed = point, False

    def __call__(self, name: str) -> None:
        if self.armed and name == self.point:
            self.armed = False
            os.kill(os.getpid(), signal.SIGSTOP)


def commit_late(directory, point: str, run_goes_on: bool) -> None:
    open_commit()
    stop = StopAt(point)
    steps.install(stop)
    log = open_ledger(LedgerPool(directory, 1)).stream(CONSUMED, "a", 1, 0)
    for seq in range(BEFORE):
        log.append(seq)
    stop.armed = True
    with pytest.raises(LedgerClosed):
        log.append(BEFORE if run_goes_on else BEFORE + 3)
    assert not stop.armed


@pytest.mark.parametrize(
    ("point", "run_goes_on"),
    [("commit.swap", True), ("commit.swap", False), ("commit.stored", False)],
)
def test_a_commit_that_was_held_across_the_close_leaves_nothing(tmp_path, point, run_goes_on):
    make_directory(tmp_path)
    child = start_child(lambda: commit_late(tmp_path, point, run_goes_on))
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    try:
        sealed = committed(tmp_path)
    finally:
        os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert sealed == committed(tmp_path) == list(range(BEFORE))
