"""Programs that cannot work, through the real command: one sentence, the right exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
STREAM = ROOT / "apps" / "stream.py"
INIT = "import os, sys, time, ftrt\nrank = os.environ['OMPI_COMM_WORLD_RANK']\n"


def launch(folder, text, *options):
    """``ftrt run`` of a program; (status, its lines on stderr, seconds, report)."""
    program = folder / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--ledger", folder / "ledger"]
    command += ["--json", folder / "report.json", "--restarts", "1", *options, program]
    begin = time.monotonic()
    done = subprocess.run(
        list(map(str, command)), env=ENV, capture_output=True, text=True, timeout=30
    )
    report = json.loads((folder / "report.json").read_text())
    assert report["exit"] == done.returncode
    return done.returncode, done.stderr.splitlines(), time.monotonic() - begin, report


BEFORE = [
    ("def f(:", "SyntaxError: ", "the program raised before it had joined the job"),
    ("import nosuchmodule", "ModuleNotFoundError: ", "raised before it had joined the job"),
    ("print('hello')", None, "(status 0) before all of its processes had called ftrt.init()"),
    ("import sys; sys.exit(2)", None, "(status 2) before all of its processes had called"),
    ("import os; os._exit(3)", None, "(status 3) before all of its processes had called"),
    (
        INIT + "if rank == '1': raise SystemExit\nwith ftrt.init(): pass",
        None,
        "process 1 ended without ftrt.init(), and the others wait for it",
    ),
]


@pytest.mark.parametrize(("text", "traced", "says"), BEFORE)
def test_before_the_job(tmp_path, text, traced, says):
    status, lines, _, report = launch(tmp_path, text)
    assert (status, report["attempts"]) == (1, 1)
    assert says in lines[-1] and lines[-1].startswith("ftrt: exit 1: ")
    if traced:
        assert sum(line.startswith(traced) for line in lines) == 1


def test_an_exception_ends_the_job_at_once(tmp_path):
    body = "    if rank == '1': raise ValueError('mine')\n    time.sleep(60)"
    status, lines, seconds, report = launch(tmp_path, f"{INIT}with ftrt.init():\n{body}")
    assert (status, report["attempts"]) == (1, 1)
    assert report["reason"] == "rank 1 raised ValueError: mine"
    assert lines[-1] == f"ftrt: exit 1: {report['reason']}"
    assert sum(line.startswith("Traceback") for line in lines) == 1
    assert seconds < 15  # rank 0 was not waited for


def test_a_death_in_the_first_moment_is_told_by_the_agent(tmp_path):
    body = "    if rank == '1': os._exit(3)\n    time.sleep(60)"
    text = f"{INIT}with ftrt.init():\n{body}"
    status, lines, _, report = launch(tmp_path, text, "--restarts", "0")
    assert (status, report["attempts"]) == (3, 1)
    assert report["reason"].startswith("rank 1 of 2 died and no spare is left")
    assert lines[-1] == f"ftrt: exit 3: {report['reason']}"


def test_what_follows_the_job_is_not_cut_short_and_counts(tmp_path):
    body = "time.sleep(6)\nprint('digest 0a')\nif rank == '1': raise KeyError('late')"
    status, lines, _, report = launch(tmp_path, f"{INIT}with ftrt.init(): pass\n{body}")
    assert (status, report["reason"]) == (1, "rank 1 raised KeyError: 'late'")
    assert sum(line.startswith("Traceback") for line in lines) == 1
    assert report["digest"] == "0a"  # both came to that line


def test_the_status_after_the_job_is_the_programs(tmp_path):
    text = "import atexit\natexit.register(print, 'digest 0b')\n"  # before ftrt: called last
    text += f"{INIT}with ftrt.init(): pass\nif rank == '1': sys.exit(3)"
    status, lines, _, report = launch(tmp_path, text)
    assert (status, report["attempts"], report["digest"]) == (1, 1, "0b")
    assert report["reason"] == "a rank left with status 3 after its work was done"
    assert lines[-1] == f"ftrt: exit 1: {report['reason']}"
    assert [record["status"] for record in report["ranks"]] == ["done", "done"]


def _alive(job):
    mark = f"FTRT_JOB={job}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def _left(job):
    return _alive(job) + [n for n in os.listdir("/dev/shm") if n.startswith(f"ftrt-{job[:8]}")]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_signals_leave_nothing(tmp_path, signum):
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--spares", "1", "--ledger"]
    command += [tmp_path / "ledger", STREAM, "--messages", 10**8]
    launcher = subprocess.Popen(
        list(map(str, command)),
        env=ENV,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup may run the tests
    )
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "ledger/epochs/000001.json").exists() and time.monotonic() < end:
            time.sleep(0.02)
        job = json.loads((tmp_path / "ledger/job.json").read_text())["job"]
        assert len(_alive(job)) >= 4  # two ranks, a spare, the agent
        launcher.send_signal(signum)
        end = time.monotonic() + 8.0
        while (left := _left(job)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not left
        status = launcher.wait(8)
        assert status == (-signum if signum == signal.SIGKILL else 128 + signum)
        told = [line for line in launcher.stderr.read().splitlines() if "exit" in line]
        assert len(told) == (status > 0)
        assert not told or told[0].startswith(f"ftrt: exit {status}: stopped by {signum.name}; ")
    finally:
        launcher.kill()
        launcher.stderr.close()


def test_a_job_under_nohup_outlives_its_terminal(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, ftrt\nwith ftrt.init() as rt:\n"
        "    os.kill(rt.config.launcher_pid, signal.SIGHUP)\n"
    )
    command = ["nohup", sys.executable, "-m", "ftrt.cli", "run", "-n", "1"]
    command += ["--ledger", str(tmp_path / "ledger"), str(program)]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
