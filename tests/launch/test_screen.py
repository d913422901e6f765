"""What a person sees: the real command on a terminal of 80 columns and into a pipe."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrt.launch.gauge import WINDOW_S, Gauge, Reading
from ftrt.launch.screen import BAR_COLUMNS, event_line, progress_line

ROOT = Path(__file__).resolve().parents[2]
RUN = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2"]
STREAM = [str(ROOT / "apps" / "stream.py"), "--messages", "3000", "--delay-us", "200"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm"}
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _on_a_terminal(command) -> str:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=ENV, start_new_session=True
    )
    os.close(slave)
    seen = b""
    try:
        while piece := os.read(master, 65536):
            seen += piece
    except OSError:  # all who could write are gone
        pass
    process.wait(30)
    os.close(master)
    return seen.decode()


def _lasting(seen: str) -> list[str]:
    """Lines that are left on the terminal: what a later piece of a line overwrote is gone."""
    lines: list[str] = []
    for line in seen.split("\r\n"):
        if "\x1b[1A" in line:  # one up, and that line is erased
            lines.pop()
        lines.append(_CONTROL.sub("", line.split("\x1b[2K")[-1]).strip("\r"))
    return lines


LOUD = """
import ftrt
with ftrt.init() as rt:
    for _ in range(5000):
        print("x" * 200, flush=True)
"""


def test_a_terminal_of_80_columns(tmp_path):
    options = ["--spares", "1", "--fault", "kill:1@1000msg", "--ledger", str(tmp_path / "ledger")]
    seen = _on_a_terminal([*RUN, *options, *STREAM])
    frames = [_CONTROL.sub("", frame) for frame in re.split(r"\r\n|\r", seen)]
    assert max(map(len, frames)) <= 80
    shares = [int(found) for found in re.findall(r"(\d+)%", "\n".join(frames))]
    assert 100 in shares and len(set(shares)) > 3
    assert any(re.search(r"\d:\d\d left .* \d+/s .*epoch 2", frame) for frame in frames)
    lasting = _lasting(seen)
    assert any(re.search(r"s fault     kill, rank 1", line) for line in lasting)
    assert any(re.search(r"s recovery  rank 1, epoch 2, .* ms: detect ", line) for line in lasting)
    told = [line for line in lasting if line.strip()]
    assert told[-1].startswith("audit ok: sent 3000, consumed 3000, duplicates 0, losses 0")
    assert not any(re.search(r"\d left", line) for line in lasting)  # the bar does not stay


def test_a_pipe_gets_plain_lines(tmp_path):
    done = subprocess.run(
        [*RUN, "--ledger", str(tmp_path / "ledger"), *STREAM],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("digest ")
    assert all(line.startswith("ftrt: ") for line in done.stderr.splitlines())


def test_a_reader_that_goes_away_does_not_hold_up_the_job(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LOUD)
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "1", "--ledger", tmp_path / "ledger"]
    line = f"{' '.join(map(str, command))} {program} | head -1; exit ${{PIPESTATUS[0]}}"
    begin = time.monotonic()
    done = subprocess.run(
        line,
        shell=True,
        executable="/bin/bash",
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "x" in done.stdout
    assert all(line.startswith("ftrt: ") for line in done.stderr.splitlines()), done.stderr
    assert time.monotonic() - begin < 20


def test_gauge_reads_a_board(tmp_path):
    from ftrt.host.board import Board, Status, Word

    gauge = Gauge(tmp_path / "board")
    assert gauge.read(0.0) is None
    board = Board.create(tmp_path / "board", 3, 2)
    assert gauge.read(0.0) is None
    board.set_header(Word.STATUS, Status.RUNNING)
    board.set_header(Word.EPOCH, 4)
    board.count_message(1, 10)
    assert gauge.read(1.0) == Reading(4, (0, 10), (0.0, 0.0))
    board.count_message(1, 30)
    board.tell_progress(0, 1, 8)
    board.tell_progress(1, 1, 2)
    reading = gauge.read(3.0)
    assert reading.messages == (0, 40)
    assert reading.rates_per_s == (0.0, 15.0)
    assert (reading.fraction, reading.left_s) == (0.2, 8.0)
    assert gauge.read(4.0 + WINDOW_S).rates_per_s == (0.0, 0.0)


@pytest.mark.parametrize(
    ("reading", "line"),
    [
        (Reading(1, (5,), (0.0,)), "5 msg  0/s  epoch 1"),
        (Reading(1, (10_000,) * 2, (12e5, 6e5)), "20.0k msg  1.8M/s █▅  epoch 1"),
        (Reading(1, (5,), (1.0,), 1, 2, 7199.6), " 50%  2:00:00 left  5 msg  1/s █  epoch 1"),
    ],
)
def test_progress_line(reading, line):
    assert progress_line(reading) == line


def test_the_longest_progress_line_fits():
    line = progress_line(Reading(100, (10**9,) * 8, (1e9,) * 8, 99, 100, 36_000.0))
    assert len("12345 s ") + BAR_COLUMNS + len(" ") + len(line) <= 80, line


def test_who_died_is_named():
    died = {"t": 1.5, "event": "died", "epoch": 2, "by": "mutex"}
    assert event_line({**died, "rank": 0}) == "  1.500 s died      rank 0, epoch 2, by mutex"
    assert event_line({**died, "rank": None}) == "  1.500 s died      a spare, epoch 2, by mutex"
