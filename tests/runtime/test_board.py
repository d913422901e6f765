"""The board, its mutexes and heartbeats, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ftrt.errors import InvariantBroken
from ftrt.host import libc
from ftrt.host.beat import Heartbeat
from ftrt.host.board import Board, Field, Phase, Word
from ftrt.runtime.events import EventLog

HOLDER = """
import sys, time, pathlib
from ftrt.host import libc
from ftrt.host.board import Board, Field, Phase
board = Board(pathlib.Path(sys.argv[1]))
libc.lock_mutex(board.mutex_address(1))
board.put(1, Field.PHASE, Phase.READY)
time.sleep(60)
"""


@pytest.fixture
def board(tmp_path):
    return Board.create(tmp_path / "board", processes=3, ranks=2)


def test_a_death_wakes_the_watcher(board, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "board")])
    try:
        deadline = time.monotonic() + 20
        while board.get(1, Field.PHASE) != Phase.READY:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        found = []
        watcher = threading.Thread(
            target=lambda: found.append(libc.lock_mutex(board.mutex_address(1))), daemon=True
        )
        watcher.start()
        watcher.join(0.1)
        assert not found
        os.kill(child.pid, signal.SIGKILL)
        watcher.join(5)
        assert found == [True]
    finally:
        child.kill()
        child.wait()


def test_the_heart_beats_beside_a_held_gil(board):
    heart = Heartbeat(board.words, board.index(0, Field.BEAT))
    try:
        before = board.get(0, Field.BEAT)
        sorted(range(3_000_000), key=lambda value: -value)
        assert board.get(0, Field.BEAT) > before
    finally:
        heart.stop()
    stopped = board.get(0, Field.BEAT)
    time.sleep(0.02)
    assert board.get(0, Field.BEAT) == stopped


def test_a_bell_rung_before_the_sleep_is_heard(board):
    seen = board.get(2, Field.BELL)
    board.ring_bell(2)
    start = time.monotonic()
    board.sleep(2, seen, 5.0)
    assert time.monotonic() - start < 1.0


def test_a_sleep_is_bounded(board):
    start = time.monotonic()
    board.sleep(2, board.get(2, Field.BELL), 0.05)
    assert 0.04 < time.monotonic() - start < 2.0


def test_a_foreign_file_is_no_board(board, tmp_path):
    board.set_header(Word.MAGIC, 1)
    with pytest.raises(InvariantBroken):
        Board(tmp_path / "board")


def test_a_process_is_named_by_its_start_too():
    assert libc.process_start_ticks(os.getpid()) > 0
    assert libc.process_start_ticks(2**22 + 1) == 0


def test_every_thread_of_a_dying_process_stands_back():
    program = "import threading,time; threading.Thread(target=time.sleep,args=(20,)).start()"
    child = subprocess.Popen(
        [sys.executable, "-c", program + "; print(flush=True); time.sleep(20)"],
        stdout=subprocess.PIPE,
    )
    try:
        child.stdout.readline()
        threads = [int(name) for name in os.listdir(f"/proc/{child.pid}/task")]
        assert len(threads) == 2
        libc.stand_back(child.pid)
        assert [os.sched_getscheduler(thread) for thread in threads] == [os.SCHED_IDLE] * 2
    finally:
        child.kill()
        child.wait(10)
    libc.stand_back(child.pid)  # one that is gone is no error


def test_events_that_wait_keep_their_order_and_their_time(tmp_path):
    log = EventLog(tmp_path, 1)
    log.write_later("died", rank=1)
    assert not (tmp_path / "events.jsonl").read_text()
    time.sleep(0.02)
    log.write("recovery", rank=2)
    log.flush()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["died", "recovery"]
    assert lines[1]["t"] - lines[0]["t"] >= 0.015
