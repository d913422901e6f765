"""``jobs/mpirun.sh``: stopped and started again, it goes on from the ledger."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, STREAM = ROOT / "jobs" / "mpirun.sh", ROOT / "apps" / "stream.py"
SLOW = [STREAM, "--messages", 3000, "--batch", 1, "--delay-us", 300]


@pytest.fixture
def begin(tmp_path):
    command = tmp_path / "ftrt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftrt.cli "$@"\n')
    command.chmod(0o755)
    started = []

    def start(*program, **environment):
        settings = {"FTRT": command, "PYTHONPATH": ROOT, "RANKS": 2, **environment}
        process = subprocess.Popen(
            [str(word) for word in (SCRIPT, *program)],
            cwd=tmp_path,
            env={**os.environ, **{name: str(value) for name, value in settings.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=20)


def _await_the_first_epoch(process, directory):
    end = time.monotonic() + 30
    while not (directory / "ledger-mpirun" / "epochs" / "000001.json").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)


def test_it_goes_on_where_it_was_told_to_stop(begin, tmp_path):
    first = begin(*SLOW)
    _await_the_first_epoch(first, tmp_path)
    first.send_signal(signal.SIGUSR1)
    output, _ = first.communicate(timeout=20)
    assert first.returncode == 75, output
    assert "start it again, and it goes on from" in output
    second = begin(*SLOW)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    assert "audit ok: sent 3000, consumed 3000, duplicates 0, losses 0" in output


@pytest.mark.long
def test_it_ends_when_it_is_told_to(begin, tmp_path):
    first = begin(*SLOW)
    _await_the_first_epoch(first, tmp_path)
    first.terminate()
    output, _ = first.communicate(timeout=20)
    assert first.returncode == 143, output
    assert "start it again" not in output


@pytest.mark.long
def test_no_recovery_is_another_start(begin):
    fault = ["--fault", "kill:1@300msg"]
    first = begin(*fault, *SLOW, SPARES=0, RESTARTS=0)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 75, output
    second = begin(*fault, *SLOW, SPARES=0, RESTARTS=0)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    assert "audit ok: sent 3000, consumed 3000, duplicates 0, losses 0" in output
