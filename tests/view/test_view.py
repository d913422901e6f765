"""``ftrt trace`` and ``ftrt top`` on real jobs: one that loses ranks, one that is watched."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from runtime_job import ROOT, run_job

from ftrt.cli import main
from ftrt.launch.gauge import Reading
from ftrt.launch.samples import Samples

PROGRAM = """
import os, pathlib, time
import numpy as np
import ftrt

N, stop = 400, pathlib.Path(__file__).with_name("go")
with ftrt.init() as rt:
    if rt.rank == 0:
        with rt.sender("numbers", to=1, replay=lambda seq: np.full(4, seq)) as out:
            for seq in range(out.next_seq, N + 1):
                while seq > 300 and os.environ.get("HOLD") and not stop.exists():
                    time.sleep(0.01)
                    rt.progress(seq, N)
                out.send(np.full(4, seq))
                time.sleep(0.001)
    else:
        for message in rt.receiver("numbers", source=0):
            with message.consume():
                pass
"""
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    program = directory / "program.py"
    program.write_text(PROGRAM)
    faults = ["--fault", "kill:1@100msg", "--fault", "kill:0@200msg"]
    ended = run_job(directory, ["-n", 2, "--spares", 1, "--restarts", 1, *faults], program)
    assert ended.status == 0, ended.output
    return ended


def traced(ledger, *options) -> list[dict]:
    result = CliRunner().invoke(main, ["trace", str(ledger), *options])
    assert result.exit_code == 0, result.output
    return json.loads(Path(result.output.strip()).read_text())["traceEvents"]


def test_a_trace_has_every_record_of_the_job(job, tmp_path):
    events = traced(job.ledger, "--out", str(tmp_path / "t.json"))
    for event in events:
        assert event["ph"] in "XiCM" and isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0 and event.get("dur", 0) >= 0
    marks = [event["name"] for event in events if event["ph"] == "i"]
    assert marks.count("died") == len(job.named("died")) == 2
    assert "fault: kill:1@100msg" in marks and "failed" in marks
    epochs = [event for event in events if event.get("cat") == "epoch"]
    assert {event["args"]["epoch"] for event in epochs} == {1, 2, 3}
    assert {event["pid"] for event in epochs} == {1, 2}
    whole = [e for e in events if e.get("cat") == "recovery" and "recovery" in e["name"]]
    assert len(whole) == len(job.named("recovery")) == 2
    for bar, told in zip(whole, job.named("recovery"), strict=True):
        phases, row = told["phases_ms"], (bar["pid"], bar["tid"])
        inside = [e for e in events if (e["pid"], e.get("tid")) == row and e["name"] in phases]
        assert sum(e["dur"] for e in inside) == pytest.approx(bar["dur"], abs=1)
        assert inside[0]["ts"] == pytest.approx(bar["ts"], abs=1)
    counters = [event for event in events if event["name"] == "messages, rank 1"]
    counts = [event["args"]["messages"] for event in counters]
    assert len(counts) >= 4 and max(counts) >= 190


def test_attempts_follow_each_other_and_a_rank_has_one_holder_at_a_time(job):
    bars = [event for event in traced(job.ledger) if event.get("cat") == "epoch"]
    first = max(bar["ts"] + bar["dur"] for bar in bars if bar["pid"] == 1)
    assert min(bar["ts"] for bar in bars if bar["pid"] == 2) >= first
    for row in {bar["tid"] for bar in bars}:
        mine = sorted((b["ts"], b["ts"] + b["dur"]) for b in bars if b["tid"] == row)
        assert all(end <= begin + 1 for (_, end), (begin, _) in zip(mine, mine[1:], strict=False))


def test_top_of_a_job_that_has_ended(job):
    result = CliRunner().invoke(main, ["top", str(job.ledger)])
    assert result.exit_code == 0
    assert "has ended: all ranks are done; audit ok: sent 400" in " ".join(result.output.split())
    rows = [line.split() for line in result.output.splitlines() if re.match(r" *[01] ", line)]
    assert [row[0] for row in rows] == ["0", "1"] and {row[-1] for row in rows} == {"done"}
    assert int(rows[1][1]) >= 200  # consumed in the last attempt


@pytest.fixture
def running(tmp_path):
    """A job that has sent 300 of 400 messages and waits to be told to go on."""
    program, ledger = tmp_path / "program.py", tmp_path / "ledger"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--spares", "1"]
    command += ["--ledger", str(ledger), str(program)]
    process = subprocess.Popen(
        command,
        env={**ENV, "HOLD": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        progress = ledger / "run" / "progress.jsonl"
        while not (progress.exists() and "[300, 300]" in progress.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield ledger, process, tmp_path / "go"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def test_top_of_a_job_that_runs(running):
    ledger, process, go = running
    once = CliRunner().invoke(main, ["top", str(ledger)]).output
    rows = [line.split() for line in once.splitlines() if re.match(r"(\d|spare)", line.strip())]
    ranks = [row for row in rows if row[0] in "01"]
    assert [row[:2] for row in ranks] == [["0", "300"], ["1", "300"]]
    assert {row[3] for row in ranks} <= {"running", "waiting"}
    assert any(line.split()[:1] == ["spare"] for line in once.splitlines())
    assert "epoch 1" in once and all(len(line) <= 80 for line in once.splitlines())
    for row in ranks:
        assert Path(f"/proc/{row[-1]}").exists()

    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "ftrt.cli", "top", str(ledger)], ENV)
    seen = _read(terminal, until=b"300 ", limit_s=20)
    go.touch()
    seen += _read(terminal, until=None, limit_s=40)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert process.wait(20) == 0
    text = seen.decode(errors="replace")
    assert "running" in text and "has ended" in text and "audit ok: sent 400" in text


def _read(terminal: int, until: bytes | None, limit_s: float) -> bytes:
    """What a terminal shows, until a text is there, or to the end."""
    import select

    seen, deadline = b"", time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # its other end is closed
                return seen
            seen += data
            if until is not None and until in seen:
                return seen
    raise AssertionError(f"not within {limit_s} s: {seen[-2000:]!r}")


def test_samples_become_rare_and_are_few(tmp_path):
    (tmp_path / "attempt-1.start").write_text("1000.0")
    samples, reading = Samples(tmp_path, 1), Reading(1, (5, 6), (0.0, 0.0))
    for step in range(20 * 3600):  # an hour, looked at every 50 ms
        samples.add(reading, 1000.0 + 0.05 * step)
    samples.add(reading, 4600.0, last=True)
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert 500 < len(lines) < 1500
    assert lines[0]["t"] == 0 and lines[-1]["t"] == 3600
    assert lines[0]["messages"] == [5, 6]


@pytest.mark.parametrize("command", ["trace", "top"])
def test_a_folder_without_a_job_is_refused(command, tmp_path):
    result = CliRunner().invoke(main, [command, str(tmp_path)])
    assert result.exit_code == 2 and "holds no job" in result.output
