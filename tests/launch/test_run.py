"""The attempt loop under a real mpirun, with programs that record their own end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrt.errors import LedgerDamaged, LedgerError
from ftrt.launch import leftovers
from ftrt.launch.faults import parse_fault
from ftrt.launch.options import Options
from ftrt.launch.run import run_job
from ftrt.launch.screen import PlainScreen
from ftrt.ledger.record import lock_directory

PRELUDE = """
import json, os, pathlib, signal, subprocess, sys, time
env = os.environ
run = pathlib.Path(env["FTRT_LEDGER"], "run")
rank, attempt = int(env["OMPI_COMM_WORLD_RANK"]), int(env["FTRT_ATTEMPT"])

def end(status, reason="", traceback=""):
    path = run / f"attempt-{attempt}" / f"rank-{rank}.json"
    record = {"rank": rank, "status": status, "reason": reason, "traceback": traceback}
    path.with_suffix(".tmp").write_text(json.dumps(record))
    path.with_suffix(".tmp").rename(path)

def event(**fields):
    with open(run / "events.jsonl", "a") as file:
        file.write(json.dumps(fields) + "\\n")
"""


@pytest.fixture
def start(tmp_path):
    def run(body, audit=None, **options):
        program = tmp_path / "program.py"
        program.write_text(PRELUDE + body)
        options = {"ranks": 2, "ledger": str(tmp_path / "ledger"), **options}
        return run_job(
            Options(program=str(program), **options),
            audit or (lambda directory: {"ok": True, "losses": 0}),
            PlainScreen(),
        )

    return run


def test_all_done_is_audited(start, tmp_path, capsys):
    report = start(
        # Rank 1 leaves last, by a signal: all that counts was done and recorded before.
        """
if rank == 0:
    print('digest 0a1b', flush=True)
    end('done')
    sys.exit(0)
while not (run / 'attempt-1' / 'rank-0.json').exists():
    time.sleep(0.01)
time.sleep(0.3)
end('done')
os.kill(os.getpid(), 9)
""",
        json_file=str(tmp_path / "out.json"),
    )
    assert (report.exit, report.attempts, report.digest) == (0, 1, "0a1b")
    out, err = capsys.readouterr()
    assert "digest 0a1b" in out
    assert "audit ok: losses 0" in err
    assert json.loads((tmp_path / "out.json").read_text())["ranks"][1]["status"] == "done"


def test_audit_that_is_not_clean_is_exit_1(start):
    report = start("end('done')", audit=lambda directory: {"ok": False, "losses": 1})
    assert report.exit == 1


def test_environment_of_a_rank(start, tmp_path, monkeypatch):
    monkeypatch.setenv("FTRT_INIT_TIMEOUT_S", "77")  # what a sentence of the agent says to set
    monkeypatch.setenv("FTRT_CALL_TIMEOUT_S", "88")
    monkeypatch.setenv("FTRT_STALL_TIMEOUT_S", "99")  # the option is stronger
    monkeypatch.setenv("FTRT_RANKS", "99")
    faults = [parse_fault("kill:1@5msg")]
    start(
        "(run / f'env-{rank}').write_text(json.dumps(dict(env)))\nend('done')",
        faults=faults,
        seed=5,
        stall_timeout_s=2.5,
    )
    env = json.loads((tmp_path / "ledger" / "run" / "env-1").read_text())
    assert env["OPENBLAS_NUM_THREADS"] == env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "1"
    assert "PYTHONFAULTHANDLER" not in env
    assert (env["FTRT_RANKS"], env["FTRT_SPARES"], env["FTRT_SEED"]) == ("2", "0", "5")
    assert env["FTRT_STALL_TIMEOUT_S"] == "2.5"
    assert (env["FTRT_INIT_TIMEOUT_S"], env["FTRT_CALL_TIMEOUT_S"]) == ("77", "88")
    assert json.loads(env["FTRT_FAULTS"])[0]["spec"] == "kill:1@5msg"


def test_exception_before_init_is_shown_once_and_not_restarted(start, capfd):
    report = start("raise KeyError('nope')", restarts=3)
    assert (report.exit, report.attempts) == (1, 1)
    assert capfd.readouterr().err.count("KeyError: 'nope'") == 1


def test_recorded_exception_is_shown_once_and_not_restarted(start, capfd):
    trace = "Traceback (most recent call last):\\n  here\\nValueError: bad"
    report = start(f"end('error', 'ValueError', '{trace}')\ntime.sleep(60)", restarts=3)
    assert (report.exit, report.attempts) == (1, 1)
    assert capfd.readouterr().err.count("ValueError: bad") == 1


def test_restart_after_a_death(start, tmp_path):
    body = """
(run / f"faults-{attempt}").write_text(env["FTRT_FAULTS"])
if attempt == 1 and rank == 1:
    event(t=0.1, event="fault", rank=1, kind="kill")
    os.kill(os.getpid(), signal.SIGKILL)
end("done" if attempt == 2 else "failed", "no spare is left")
"""
    report = start(body, restarts=1, faults=[parse_fault("kill:1@5msg")])
    assert (report.exit, report.attempts) == (0, 2)
    assert [fault["rank"] for fault in report.faults] == [1]
    run = tmp_path / "ledger" / "run"
    assert (run / "faults-1").read_text() == (run / "faults-2").read_text()


def test_out_of_restarts_is_exit_3_with_the_reason(start, capsys):
    body = "if rank == 0: event(t=1, attempt=attempt, event='failed', reason='no spare is left')\n"
    report = start(body + "time.sleep(0.2)\nend('failed', 'my peer is gone')", restarts=1)
    assert (report.exit, report.attempts) == (3, 2)
    assert report.reason == "no spare is left"
    assert "exit 3: no spare is left" in capsys.readouterr().err


def test_nothing_is_left_behind(start, tmp_path):
    body = """
job = env["FTRT_JOB"]
pathlib.Path(f"/dev/shm/ftrt-{job[:8]}-{rank}").write_text("x")
child = subprocess.Popen(["sleep", "120"], start_new_session=True)
(run / f"child-{rank}").write_text(str(child.pid))
end("done")
os._exit(0)
"""
    report = start(body)
    assert report.exit == 0
    for rank in (0, 1):
        pid = int((tmp_path / "ledger" / "run" / f"child-{rank}").read_text())
        assert leftovers.start_time(pid) is None
    assert not list(Path("/dev/shm").glob(f"ftrt-{report.job[:8]}-*"))


def test_pids_file_names_leftovers_by_start_time(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    (tmp_path / "pids").write_text(f"{child.pid} 1\nnonsense\n")
    assert leftovers.clean("no-such-job", tmp_path, 0.1) == 0
    (tmp_path / "pids").write_text(f"{child.pid} {leftovers.start_time(child.pid)}\n")
    assert leftovers.clean("no-such-job", tmp_path) == 1
    assert child.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("signum", [signal.SIGTERM])
def test_signal_ends_the_job(tmp_path, signum):
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + "(run / f'up-{rank}').touch()\ntime.sleep(120)")
    ledger = tmp_path / "ledger"
    command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2", "--ledger", str(ledger)]
    launcher = subprocess.Popen([*command, str(program)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while len(list(ledger.glob("run/up-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(launcher.pid, signum)
    assert launcher.wait(20) == 128 + signum


def test_ledger_of_another_job_is_refused(start, tmp_path):
    assert start("end('done')").exit == 0
    before = (tmp_path / "ledger" / "job.json").read_bytes()
    with pytest.raises(LedgerError, match="holds the ledger of job"):
        start("end('done')")
    assert (tmp_path / "ledger" / "job.json").read_bytes() == before


def test_ledger_in_use_is_refused(start, tmp_path):
    (tmp_path / "ledger").mkdir()
    with (
        lock_directory(tmp_path / "ledger"),
        pytest.raises(LedgerError, match=f"in use by a running job .pid {os.getpid()}"),
    ):
        start("end('done')")


def test_ledger_that_cannot_be_made_is_refused(start, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="choose another"):
        start("end('done')", ledger=str(tmp_path / "file" / "ledger"))


def test_damaged_job_file_is_refused(start, tmp_path):
    assert start("end('done')").exit == 0
    path = tmp_path / "ledger" / "job.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LedgerDamaged, match=r"job\.json"):
        start("end('done')")
