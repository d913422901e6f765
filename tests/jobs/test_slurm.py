"""``jobs/ftrt.sbatch`` under a real Slurm on this machine: deaths, requeues, and what is left."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from ftrt.launch import leftovers

from .slurm import cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, STREAM = ROOT / "jobs" / "ftrt.sbatch", ROOT / "apps" / "stream.py"
SHM = Path("/dev/shm")
MESSAGES = 4000
SLOW = [STREAM, "--messages", MESSAGES, "--batch", 1, "--delay-us", 1000]


@pytest.fixture(scope="module")
def slurm():
    root = Path(tempfile.mkdtemp(prefix="ftrt-slurm-"))
    try:
        with cluster(root) as started:
            yield started
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def submit(slurm, tmp_path):
    command = tmp_path / "ftrt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftrt.cli "$@"\n')
    command.chmod(0o755)
    jobs = []

    def queue(program, *options, script=SCRIPT, **environment):
        environment = {"FTRT": command, "PYTHONPATH": ROOT, **environment}
        tasks = [] if any("--ntasks" in str(option) for option in options) else ["--ntasks=3"]
        jobs.append(slurm.submit(tmp_path, *tasks, *options, script, *program, **environment))
        return jobs[-1]

    yield queue
    for job in jobs:
        slurm.run("scancel", job.number, check=False)


def digest_of(ranks):
    """What the stream program prints at its end, in closed form."""
    sys.path.insert(0, str(ROOT / "apps"))
    import stream

    options = stream.Options(messages=MESSAGES)
    sums = [stream.expected_sums(source, options) for source in stream.routes(ranks)]
    return f"digest {hashlib.sha256(b''.join(map(bytes, sums))).hexdigest()}"


def left_of(job):
    """Processes and shared memory of the job."""
    numbers = re.findall(r"^ftrt: job ([0-9a-f]{8})", job.output, re.MULTILINE)
    mark = f"SLURM_JOB_ID={job.number}".encode()
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and leftovers.start_time(int(entry.name)):
                processes.append(entry.name)
    return processes + [path.name for number in numbers for path in SHM.glob(f"ftrt-{number}-*")]


def has_begun(job):
    return (job.ledger / "epochs" / "000001.json").exists()


def ended_well(job, ranks=2):
    """The job came to its end, with the result that it has without a fault."""
    assert job.end() == ("COMPLETED", "0:0"), job.output
    count = MESSAGES * (ranks - 1)
    assert f"ftrt: audit ok: sent {count}, consumed {count}, duplicates 0, losses 0" in job.output
    assert digest_of(ranks) in job.output.splitlines()
    job.await_moment(lambda: not left_of(job), 10.0)


def test_a_rank_dies(submit):
    job = submit(["--fault", "kill:1@300msg", STREAM, "--messages", MESSAGES])
    ended_well(job)
    assert "1 fault, 1 recovery" in job.output and "1 attempt" in job.output


@pytest.mark.slurm
def test_the_main_job(submit):
    digests = []
    for fault in ([], ["--fault", "kill:2@20msg"]):
        program = [*fault, ROOT / "apps" / "rollout.py", "--iterations", 10, "--quiet"]
        job = submit(program, "--ntasks=5")
        assert job.end() == ("COMPLETED", "0:0"), job.output
        assert "audit ok: sent 150, consumed 150, duplicates 0, losses 0" in job.output
        digests += [line for line in job.output.splitlines() if line.startswith("digest ")]
    assert len(digests) == 2 and digests[0] == digests[1]


@pytest.mark.slurm
@pytest.mark.parametrize("by", ["scancel --batch --signal=USR1", "scontrol requeue"])
def test_a_requeued_job_goes_on_from_the_ledger(submit, slurm, by):
    job = submit(SLOW)
    job.await_moment(lambda: has_begun(job))
    slurm.run(*by.split(), job.number)
    ended_well(job)
    assert job.facts()["Restarts"] == "1"
    assert job.output.count("ftrt: exit 143: stopped by SIGTERM") == 1
    if "USR1" in by:
        assert "ftrt.sbatch: time is up; the job is queued again" in job.output
    epochs = [path.name for path in sorted((job.ledger / "run").glob("attempt-?"))]
    assert epochs == ["attempt-1", "attempt-2"]


@pytest.mark.slurm
def test_the_time_limit_requeues(submit):
    slow = [*SLOW[:-1], 4000]
    job = submit(slow, "--time=00:01:00", "--signal=B:USR1@50")
    job.await_moment(lambda: "time is up" in job.output, 90.0)
    assert job.facts()["Restarts"] in ("0", "1")
    ended_well(job)


@pytest.mark.slurm
def test_a_cancelled_job_leaves_nothing(submit, slurm):
    job = submit(SLOW)
    job.await_moment(lambda: has_begun(job))
    slurm.run("scancel", job.number)
    state, _ = job.end()
    assert state == "CANCELLED"
    job.await_moment(lambda: not left_of(job), 10.0)
    assert "ftrt: exit 143: stopped by SIGTERM" in job.output
    assert "queued again" not in job.output


def _lose_a_node(job):
    """Kill all that runs for the job on the second node: mpirun's daemon, a rank and the spare."""
    job.await_moment(lambda: has_begun(job))
    marks = {f"SLURM_JOB_ID={job.number}".encode(), b"SLURMD_NODENAME=n2"}
    there = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                there.append(int(entry.name))
    assert len(there) >= 3
    for pid in there:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


ON_TWO_NODES = ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2")


@pytest.mark.slurm
def test_a_lost_node_is_a_restart_in_the_allocation(submit):
    job = submit(SLOW, *ON_TWO_NODES, RANKS=3, SPARES=1)
    _lose_a_node(job)
    ended_well(job, ranks=3)
    assert job.facts()["Restarts"] == "0"
    assert "attempt 1 failed" in job.output and "2 attempts" in job.output


@pytest.mark.slurm
def test_a_lost_node_without_restarts_is_a_requeue(submit):
    job = submit(SLOW, *ON_TWO_NODES, RANKS=3, SPARES=1, RESTARTS=0)
    _lose_a_node(job)
    ended_well(job, ranks=3)
    assert job.facts()["Restarts"] == "1"
    assert "ftrt ended with status 3; the job is queued again" in job.output


@pytest.mark.slurm
def test_a_job_that_fails_each_time_comes_to_an_end(submit):
    faults = ["--fault", "kill:1@300msg", "--fault", "kill:0@300msg", "--fault", "kill:1@100msg"]
    job = submit([*faults, *SLOW], RANKS=2, SPARES=0, RESTARTS=0, MAX_REQUEUES=1)
    assert job.end() == ("FAILED", "3:0"), job.output
    assert job.facts()["Restarts"] == "1"
    assert "1 requeues are enough" in job.output


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("import ftrt\nwith ftrt.init() as rt:\n    raise ValueError('mine')\n", 1, "mine"),
        ("import ftrt\n", 2, "ask for --ntasks=8"),
    ],
)
def test_what_another_start_would_not_heal(submit, tmp_path, program, status, says):
    path = tmp_path / "program.py"
    path.write_text(program)
    job = submit([path], SPARES=1 if status == 1 else 6, RANKS=2)
    assert job.end() == ("FAILED", f"{status}:0")
    assert says in job.output and "queued again" not in job.output
    assert job.facts()["Restarts"] == "0"


@pytest.mark.slurm
def test_a_cluster_that_does_not_know_the_status(tmp_path):
    root = Path(tempfile.mkdtemp(prefix="ftrt-slurm-"))
    command = tmp_path / "ftrt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftrt.cli "$@"\n')
    command.chmod(0o755)
    try:
        with cluster(root, requeue_exit="") as slurm:
            job = slurm.submit(tmp_path, "--ntasks=3", SCRIPT, *SLOW, FTRT=command, PYTHONPATH=ROOT)
            job.await_moment(lambda: has_begun(job))
            slurm.run("scancel", "--batch", "--signal=USR1", job.number)
            ended_well(job)
            assert job.facts()["Restarts"] == "1"
    finally:
        shutil.rmtree(root, ignore_errors=True)
