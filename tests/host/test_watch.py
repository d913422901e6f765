"""A death is seen once, by whichever of its two watchers wakes first, and nothing stays pinned."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from ftrt.host import libc
from ftrt.host.board import Board, Field
from ftrt.host.watch import Watch
from ftrt.host.words import MUTEXES

OWNER = """
import os, sys, pathlib, time
from ftrt.host import libc
from ftrt.host.board import Board, Field, Phase
board = Board(pathlib.Path(sys.argv[1]))
if sys.argv[2] == "both":
    board.own(0)
else:
    libc.lock_mutex(board.mutex_address(0, int(sys.argv[2])))
board.put(0, Field.START_TICKS, libc.process_start_ticks(os.getpid()))
board.put(0, Field.PID, os.getpid())
time.sleep(60)
"""


@pytest.mark.parametrize("held", ["both", *range(MUTEXES)])
@pytest.mark.timeout(60)
def test_a_death_is_seen_once(tmp_path, held):
    board = Board.create(tmp_path / "board", processes=1, ranks=1)
    child = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "board"), str(held)])
    if held != "both":  # as if the watcher of the other one never woke
        libc.lock_mutex(board.mutex_address(0, 1 - int(held)))
    try:
        deadline = time.monotonic() + 30
        while not board.get(0, Field.PID):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.005)
        cores = os.sched_getaffinity(0)
        watch = Watch(board, [0])
        time.sleep(0.1)
        assert watch.deaths() == []
        child.send_signal(signal.SIGKILL)
        assert select.select([watch.descriptor], [], [], 5)[0], "nobody woke"
        seen = watch.deaths()
        time.sleep(0.1)
        assert seen + watch.deaths() == [0]
        assert os.sched_getaffinity(0) == cores
    finally:
        child.kill()
        child.wait()
