"""A job whose launcher is gone is gone on with by another one, from its ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import ROOT, STREAM, run_job

from ftrt.cli import main
from ftrt.ledger.record import create_job
from ftrt.oracle import check_effects

MESSAGES = 300


def test_after_the_launchers_death_and_after_a_failure(tmp_path):
    program = ["--messages", MESSAGES, "--delay-us", 2000, "--effects", tmp_path / "effects"]
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", 2, "--ledger", tmp_path / "ledger"]
    launcher = subprocess.Popen(
        list(map(str, [*command, STREAM, *program])),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 40
        while _lines(tmp_path / "effects") < 100:
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.01)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    # At once: what is left of the first attempt may still be on its way out.
    options = ["-n", 2, "--resume", "--fault", "kill:1@50msg"]
    failed = run_job(tmp_path, options, STREAM, *program)
    assert failed.status == 3 and failed.report["attempts"] == 2, failed.output
    ended = run_job(tmp_path, ["-n", 2, "--spares", 1, "--resume"], STREAM, *program)
    assert ended.status == 0 and ended.report["attempts"] == 3, ended.output
    assert ended.report["audit"]["consumed"] == ended.report["audit"]["sent"] == MESSAGES
    oracle = check_effects(tmp_path / "effects", {(1, "numbers", 0): MESSAGES})
    assert not oracle["losses"] and not oracle["duplicates"], oracle
    job = ended.report["job"]
    assert job == failed.report["job"]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"ftrt-{job[:8]}")]


def _lines(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("*.txt"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "go on with that job with --resume"),
        (["--resume", "-n", "3"], "has ranks 2, not 3: type the command that began it"),
        (["--resume", "--seed", "1"], "has seed 0, not 1"),
        (["--resume", "--ledger", "{}/nothing"], "holds no job; leave --resume out"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(tmp_path, options, says):
    facts = {"ranks": 2, "spares": 0, "stable": "process", "seed": 0}
    create_job(tmp_path, {"job": "a", **facts, "program": str(STREAM), "args": []})
    words = [word.format(tmp_path) for word in options]
    ledger = [] if "--ledger" in words else ["--ledger", str(tmp_path)]
    result = CliRunner().invoke(main, ["run", "-n", "2", *ledger, *words, str(STREAM)])
    assert result.exit_code == 2 and says in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_ledger_must_be_named():
    result = CliRunner().invoke(main, ["run", "-n", "1", "--resume", str(STREAM)])
    assert result.exit_code == 2 and "--resume needs --ledger DIR" in result.output
