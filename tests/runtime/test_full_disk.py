"""The ledger's disk fills up while a job runs: told in one sentence, and gone on with later."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ledger"))
from ledger_support import mounted
from runtime_job import run_job

from ftrt.oracle import check_effects

# A spool of 40 KB a message, or a state that grows.
PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
import ftrt
from ftrt.oracle import Effects

how, oracle = sys.argv[1:]
MESSAGES, FULL_AT = 120, 40

def made(seq):
    return np.full(5000, seq)

def fill(rt):
    filler = rt.config.ledger.parent / "filler"
    if rt.config.attempt > 1:
        return
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

with ftrt.init() as rt, Effects(oracle, rt.rank) as effects:
    if rt.rank == 0:
        more = {"spool": True} if how == "spool" else {"replay": made}
        with rt.sender("numbers", to=1, window=8, **more) as out:
            while out.next_seq <= MESSAGES:
                out.send(made(out.next_seq))
    else:
        state = rt.restore() or {"sum": 0}
        for message in rt.receiver("numbers", source=0):
            assert (message.array == message.seq).all()
            effects.begin("numbers", 0, message.seq)
            with message.consume() as effect:
                state["sum"] += message.seq
                effect["sum"] = state["sum"]
                if how == "state":
                    effect["history"] = np.full(message.seq * 500, message.seq)
            effects.committed("numbers", 0, message.seq)
            if message.seq == FULL_AT:
                fill(rt)
        assert state["sum"] == MESSAGES * (MESSAGES + 1) // 2
        print("digest", f"{state['sum']:x}", flush=True)
"""


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "size=24m"):
        yield disk


def make_room(disk: Path, stop: threading.Event) -> None:
    """Remove what fills the disk as soon as a rank has said that it is full."""
    while not stop.wait(0.005):
        if list(disk.glob("ledger/run/attempt-1/rank-*.json")):
            (disk / "filler").unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["spool", "state"])
@pytest.mark.parametrize("room", [False, True])
def test_a_disk_that_fills_up_costs_nothing_that_was_committed(tmp_path, small_disk, how, room):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    oracle = tmp_path / "effects"
    oracle.mkdir()
    stop = threading.Event()
    if room:
        threading.Thread(target=make_room, args=[small_disk, stop], daemon=True).start()
    try:
        ended = run_job(small_disk, ["-n", 2, "--restarts", 1], program, how, oracle)
    finally:
        stop.set()
    assert "Traceback" not in ended.output, ended.output
    told = [line for line in ended.output.splitlines() if re.search("(took only|no space)", line)]
    assert len(told) == 1 and re.search("[Ff]ree (space|some)", told[0]), ended.output
    found = check_effects(oracle, {(1, "numbers", 0): 120})
    assert not found["duplicates"]
    if room:
        assert ended.status == 0 and ended.report["attempts"] == 2, ended.output
        assert ended.report["audit"]["consumed"] == 120 and not found["losses"]
    else:
        assert ended.status == 3 and "is full; free at least" in ended.output, ended.output
        audit = subprocess.run(
            [sys.executable, "-m", "ftrt.cli", "audit", "--json", ended.ledger],
            capture_output=True,
            check=False,
        )
        assert audit.returncode == 1 and json.loads(audit.stdout)["duplicates"] == 0
