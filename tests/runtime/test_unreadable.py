"""A rank dies whose ledger cannot be read: nobody goes on from a guess, and the file is named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrt.ledger.layout import segment_name
from ftrt.ledger.segment import Segment

HERE = Path(__file__).parent


@pytest.mark.long
def test_a_ledger_that_cannot_be_read_is_named_and_not_inherited(tmp_path):
    ledger = tmp_path / "ledger"
    options = ["-n", 3, "--min-ranks", 2, "--ledger", ledger]
    command = [sys.executable, "-m", "ftrt.cli", "run", *options, HERE / "shrink_program.py"]
    job = subprocess.Popen(
        [str(word) for word in (*command, "--messages", 2000, "--delay-us", 3000)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    try:
        victim = pid_of(ledger, 2)
        path = ledger / segment_name(1, 2, 0)
        segment = damaged(path)
        os.kill(victim, signal.SIGKILL)
        output, _ = job.communicate(timeout=60)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(20)
    assert segment and job.returncode == 3, output
    assert path.name in output and "exit 3" in output
    assert not list((ledger / "epochs").glob("000002.json"))


def pid_of(ledger, rank, limit_s=60):
    """Process id of a rank, once it has consumed something."""
    record, end_s = ledger / "epochs" / "000001.json", time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if record.exists():
            members = json.loads(record.read_text())["members"]
            segment = Segment(ledger / segment_name(1, rank, 0))
            if segment.words.any():
                return members[rank]["pid"]
        time.sleep(0.05)
    raise AssertionError("the job did not begin")


def damaged(path):
    """Flip bits in the first words that a segment has."""
    segment = Segment(path)
    for index in range(8):
        segment.whole[segment.at_words + index] ^= 1 << 40
    return segment
