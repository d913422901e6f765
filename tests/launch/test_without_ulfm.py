"""An MPI without ULFM: a death ends MPI's job, and all ranks begin again from the ledger."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpich import ROOT, python_with_mpich

from ftrt.launch import leftovers
from ftrt.oracle import check_effects

STREAM, ROLLOUT = ROOT / "apps" / "stream.py", ROOT / "apps" / "rollout.py"
SHM = Path("/dev/shm")


class Ended:
    """A job under MPICH or under Open MPI without ULFM, run to its end."""

    def __init__(self, directory, python, *words, limit_s=60.0, **env):
        self.ledger, report = directory / "ledger", directory / "report.json"
        where = ["--ledger", self.ledger, "--json", report]
        command = [python, "-m", "ftrt.cli", "run", *where, *words]
        before = set(SHM.glob("mpich_shm_*"))
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        )
        self.status, self.output = done.returncode, done.stdout
        self.report = json.loads(report.read_text())
        job = self.report["job"]
        self.left = [*leftovers.of_job(job), *SHM.glob(f"ftrt-{job[:8]}-*")]
        self.left += set(SHM.glob("mpich_shm_*")) - before


def test_a_death_under_mpich_is_a_restart(tmp_path):
    fault = ["--fault", "kill:1@300msg"]
    options = ["-n", 2, "--spares", 1, *fault, STREAM, "--messages", 2000]
    effects = tmp_path / "effects"
    ended = Ended(tmp_path, python_with_mpich(), *options, "--effects", effects)
    assert ended.status == 0, ended.output
    assert (ended.report["attempts"], len(ended.report["faults"])) == (2, 1)
    audit = ended.report["audit"]
    assert audit["ok"] and (audit["sent"], audit["duplicates"], audit["losses"]) == (2000, 0, 0)
    found = check_effects(effects, {(1, "numbers", 0): 2000})
    assert (found["losses"], found["duplicates"]) == ([], [])
    said = [line for line in ended.output.splitlines() if "without ULFM:" in line]
    assert len(said) == 1 and "1 time at most, one for each spare" in said[0]
    assert re.match(r"ftrt: MPICH \d+\.\d+", said[0])
    assert "BAD TERMINATION" not in ended.output
    assert ended.left == []


@pytest.mark.long
def test_the_digest_under_mpich_is_that_without_a_fault(tmp_path):
    program = [ROLLOUT, "--iterations", 10, "--quiet"]
    for name in ("clean", "faults"):
        (tmp_path / name).mkdir()
    clean = Ended(tmp_path / "clean", sys.executable, "-n", 4, *program)
    faults = ["--fault", "kill:1@20msg", "--fault", "segv:2@30msg", "--fault", "kill:0@100msg"]
    restarts = ["--spares", 1, "--restarts", 2]
    ended = Ended(tmp_path / "faults", python_with_mpich(), "-n", 4, *restarts, *faults, *program)
    assert ended.status == 0, ended.output
    assert ended.report["digest"] == clean.report["digest"]
    assert ended.report["attempts"] == len(ended.report["faults"]) + 1 > 2
    assert ended.left == []


@pytest.mark.long
@pytest.mark.parametrize("fault", ["exit:1@300msg", "hang:1@300msg", "freeze:0@300msg"])
def test_other_ends_of_a_rank_under_mpich(tmp_path, fault):
    options = ["-n", 2, "--restarts", 1, "--fault", fault, "--evict-timeout-s", 1]
    program = [STREAM, "--messages", 2000]
    ended = Ended(
        tmp_path, python_with_mpich(), *options, "--stall-timeout-s", 2, *program, FTRT_SHM="0"
    )
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 2 and ended.report["audit"]["ok"]
    assert ended.left == []


@pytest.mark.long
def test_a_death_while_mpich_begins(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "if os.environ['FTRT_ATTEMPT'] == '1':\n"
        "    import threading\n"
        "    kill = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL))\n"
        "    if os.environ['PMI_RANK'] == '1':\n"
        "        kill.start(); kill.join()\n"
        f"sys.argv[0] = {str(STREAM)!r}\n"
        "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n"
    )
    options = ["-n", 2, "--restarts", 1, program, "--messages", 500]
    ended = Ended(tmp_path, python_with_mpich(), *options)
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 2 and ended.report["audit"]["ok"]
    assert ended.left == []


@pytest.mark.long
def test_open_mpi_can_be_used_without_ulfm(tmp_path):
    options = ["-n", 2, "--restarts", 1, "--fault", "kill:0@300msg", STREAM, "--messages", 2000]
    ended = Ended(tmp_path, sys.executable, *options, FTRT_ULFM="0")
    assert ended.status == 0, ended.output
    assert "Open MPI 5" in ended.output and "is used without ULFM" in ended.output
    assert ended.report["attempts"] == 2 and ended.report["audit"]["ok"]
    assert ended.left == []


def test_only_memory_that_nobody_uses_is_swept():
    began_s = time.time()
    used, unused = names = [SHM / f"mpich_shm_{os.getpid():x}_{number}" for number in range(2)]
    for path in names:
        path.write_bytes(b"x")
    try:
        with used.open():
            assert leftovers.sweep_mpich(began_s + 3600) == 0
            leftovers.sweep_mpich(began_s - 1)
            assert (used.exists(), unused.exists()) == (True, False)
    finally:
        for path in names:
            path.unlink(missing_ok=True)
