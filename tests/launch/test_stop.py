"""SIGTERM and Ctrl-C at any moment: an orderly end, nothing left, and the job can go on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrt.launch import leftovers
from ftrt.launch.options import Options
from ftrt.launch.run import run_job
from ftrt.launch.screen import PlainScreen
from ftrt.ledger.layout import CLOSED
from ftrt.ledger.segment import Segment

ROOT = Path(__file__).resolve().parents[2]
STREAM = ROOT / "apps" / "stream.py"
SHM = Path("/dev/shm")
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
PROGRAM = [STREAM, "--messages", 4000, "--batch", 1, "--delay-us", 200]
#: What the program above has at its end, whatever happened on the way.
SUMS: dict[str, str] = {}


class Job:
    """A job that can be told to stop when it has come to some moment."""

    def __init__(self, directory, *options, program=PROGRAM):
        self.ledger = directory / "ledger"
        words = [sys.executable, "-m", "ftrt.cli", "run", "-n", 2, "--ledger", self.ledger]
        self._words = [str(word) for word in [*words, *options, *program]]
        self._output = (directory / "output").open("a+")
        self.process = self._start(self._words)

    def _start(self, words):
        return subprocess.Popen(words, env=ENV, stdout=self._output, stderr=subprocess.STDOUT)

    @property
    def output(self):
        return Path(self._output.name).read_text()

    @property
    def events(self):
        path = self.ledger / "run" / "events.jsonl"
        return path.read_text() if path.exists() else ""

    def await_moment(self, reached, limit_s=30.0):
        end = time.monotonic() + limit_s
        while not reached(self):
            assert self.process.poll() is None and time.monotonic() < end, self.output
            time.sleep(0.0005)

    def stop(self, signum, within_s=8.0):
        """Signal it; its status as a shell tells it."""
        self.process.send_signal(signum)
        status = self.process.wait(within_s)
        return 128 - status if status < 0 else status

    def left(self):
        """What it left, once what is on its way out had a moment; nothing if it never began."""
        path = self.ledger / "job.json"
        if not path.exists():
            return []
        job = json.loads(path.read_text())["job"]
        return [*leftovers.of_job(job), *SHM.glob(f"ftrt-{job[:8]}-*")]

    def resume(self):
        """Go on to the end; status and output."""
        began = (self.ledger / "job.json").exists()
        words = [*self._words]
        if began:
            words.insert(words.index("--ledger"), "--resume")
        done = subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._output.close()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(*options, **more):
        jobs.append(Job(tmp_path, *options, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def runs(job):
    return (job.ledger / "epochs" / "000001.json").exists()


def goes_on(job):
    """The same command, and --resume where there is a job, ends as if nothing had happened."""
    status, output = job.resume()
    assert status == 0, output
    assert "audit ok: sent 4000, consumed 4000, duplicates 0, losses 0" in output
    digest = next(line for line in output.splitlines() if line.startswith("digest "))
    assert SUMS.setdefault("digest", digest) == digest
    assert job.left() == []


def test_while_it_runs(start):
    job = start("--spares", 1)
    job.await_moment(runs)
    time.sleep(0.3)
    assert job.stop(signal.SIGTERM) == 143
    assert job.left() == []
    assert "exit 143: stopped by SIGTERM; nothing that was committed is lost" in job.output
    segments = sorted(job.ledger.glob("*000001*.h5"))
    closed = [Segment(path) for path in segments if "state" not in path.name]
    assert closed
    for segment in closed:
        assert int(segment.whole[segment.at_control]) & CLOSED
    goes_on(job)


def test_while_it_starts(start):
    job = start()
    job.await_moment(lambda job: (job.ledger / "run" / "attempt-1").exists())
    assert job.stop(signal.SIGINT) == 130
    assert job.left() == []
    assert "Traceback" not in job.output


def test_between_two_attempts(start):
    job = start("--restarts", 3, "--fault", "kill:1@50msg", "--fault", "kill:0@60msg")
    job.await_moment(lambda job: "restarting" in job.output)
    assert job.stop(signal.SIGTERM) == 143
    assert job.left() == []


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_in_a_recovery(start, signum):
    job = start("--spares", 2, "--fault", "kill:1@200msg", "--fault", "kill:0@recovery")
    job.await_moment(lambda job: '"fault"' in job.events or '"died"' in job.events)
    assert job.stop(signum) == 128 + signum
    assert job.left() == []
    goes_on(job)


@pytest.mark.long
def test_at_the_end(start):
    job = start(program=[STREAM, "--messages", 4000])
    job.await_moment(lambda job: "digest " in job.output)
    assert job.stop(signal.SIGTERM) in (0, 143)  # it may have been faster
    assert job.left() == []
    goes_on(job)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_at_any_moment(start, seed):
    chance = random.Random(seed)
    faults = ["--spares", 1, "--restarts", 1, "--fault", "kill:1@300msg", "--fault", "kill:0@1s"]
    job = start(*faults)
    time.sleep(chance.uniform(0.0, 4.5))
    signum = chance.choice([signal.SIGTERM, signal.SIGINT])
    status = job.stop(signum)
    assert status == 128 + signum or (status == 0 and "audit ok" in job.output), job.output
    assert job.left() == []
    goes_on(job)


def test_in_the_audit(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import ftrt\nwith ftrt.init() as rt: pass\n")

    def slow_audit(directory):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    options = Options(str(program), ranks=1, ledger=str(tmp_path / "ledger"))
    report = run_job(options, slow_audit, PlainScreen())
    assert report.exit == 143
    assert report.reason.startswith("stopped by SIGTERM in the audit; the work is done")


def test_before_anything_was_started(tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\ntouch "$0.asked"\nsleep 30\n')
    mpirun.chmod(0o755)
    words = [sys.executable, "-m", "ftrt.cli", "run", "-n", "1", "--mpirun", str(mpirun)]
    words += ["--ledger", str(tmp_path / "ledger"), str(STREAM)]
    process = subprocess.Popen(words, env=ENV, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while not (tmp_path / "mpirun.asked").exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=5)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == "ftrt: stopped by SIGINT before anything was started\n"
    assert not (tmp_path / "ledger").exists()


def test_two_jobs_on_one_ledger(start, tmp_path):
    first = start()
    first.await_moment(lambda job: (job.ledger / "job.json").exists())
    job = (first.ledger / "job.json").read_bytes()
    for more in ([], ["--resume"]):
        words = [*first._words]
        words[words.index("--ledger") : words.index("--ledger")] = more
        done = subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert f"in use by a running job (pid {first.process.pid})" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert (first.ledger / "job.json").read_bytes() == job
    assert first.process.poll() is None
    assert first.stop(signal.SIGTERM) == 143
    assert first.left() == []
