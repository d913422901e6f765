"""ftrt grow: asked for at any time, there from the next attempt on, and it says so."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.launch.grow import grow, grown
from ftrt.ledger.record import create_job, lock_directory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ledger(tmp_path):
    job = {"job": "0" * 32, "ranks": 3, "spares": 1, "stable": "process"}
    assert create_job(tmp_path, job)
    (tmp_path / "run").mkdir()
    return tmp_path


def test_requests_add_up(ledger):
    assert grown(ledger) == 0
    assert "does not run now" in grow(ledger, 2)
    assert grow(ledger, 1).startswith("1 spare more")
    assert grown(ledger) == 3


def test_a_job_that_runs_grows_later(ledger):
    with lock_directory(ledger):
        said = grow(ledger, 2)
    assert "from the next attempt on, not at once" in said and "--restarts" in said


def test_half_a_line_counts_nothing(ledger):
    grow(ledger, 2)
    with open(ledger / "run" / "grow.jsonl", "a") as file:
        file.write('{"spar')
    assert grown(ledger) == 2


@pytest.mark.parametrize(("spares", "says"), [(0, "use 1 or more"), (5000, "processes are more")])
def test_what_cannot_be_is_refused(ledger, spares, says):
    with pytest.raises(UsageError, match=says):
        grow(ledger, spares)
    assert grown(ledger) == 0


def test_the_command(ledger):
    said = CliRunner().invoke(main, ["grow", str(ledger), "2"])
    assert said.exit_code == 0 and said.output.startswith("ftrt: 2 spares more")
    said = CliRunner().invoke(main, ["grow", str(ledger), "0"])
    assert said.exit_code == 2 and "use 1 or more" in said.output


def test_there_must_be_a_job(tmp_path):
    with pytest.raises(UsageError, match="holds no job"):
        grow(tmp_path, 1)


@pytest.mark.long
def test_a_shrunk_job_grows_back_at_its_restart(tmp_path):
    """Rank 3 is inherited; a spare is asked for; rank 0 dies and all begin again, with a spare."""
    ledger, report = tmp_path / "ledger", tmp_path / "report.json"
    program = ROOT / "tests" / "runtime" / "shrink_program.py"
    options = ["-n", 4, "--min-ranks", 2, "--restarts", 1, "--fault", "kill:3@60msg"]
    command = [
        sys.executable,
        "-m",
        "ftrt.cli",
        "run",
        "--ledger",
        ledger,
        "--json",
        report,
        *options,
        program,
    ]
    command += ["--messages", 700, "--delay-us", 3000]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=env,
    )
    try:
        assert await_event(ledger, "shrunk", 40)
        assert "from the next attempt on, not at once" in grow(ledger, 2)
        os.kill(acting(ledger)[0], signal.SIGKILL)  # the only sender: no rank inherits that
        output, _ = job.communicate(timeout=60)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(20)
    assert job.returncode == 0, output
    assert "attempt 2 has 2 spares: 2 by ftrt grow" in output
    found = json.loads(report.read_text())
    assert found["grown"] == 2 and found["attempts"] == 2 and found["audit"]["ok"]
    last = json.loads(sorted((ledger / "epochs").glob("*.json"))[-1].read_text())
    assert last["inherited"] == [] and last["spares"] == [4, 5]
    assert len(re.findall(r"^rank \d is right$", output, re.M)) == 3


def acting(ledger):
    last = json.loads(sorted((ledger / "epochs").glob("*.json"))[-1].read_text())
    return {member["rank"]: member["pid"] for member in last["members"]}


def await_event(ledger, name, limit_s):
    events, end_s = ledger / "run" / "events.jsonl", time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if events.exists() and f'"event": "{name}"' in events.read_text():
            return True
        time.sleep(0.05)
    return False
