"""``ftrt doctor`` on a host that is fine, and on one in which something real is wrong."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftrt import doctor
from ftrt.cli import main
from ftrt.doctor import host, kernel, mpi, python, storage
from ftrt.launch.mpirun import find_mpirun, identify

ROOT = Path(__file__).parents[2]


def asked(*options, prefix=(), **env) -> subprocess.CompletedProcess:
    command = [*prefix, sys.executable, "-m", "ftrt.cli", "doctor", *options]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def named(checks, name):
    found = [check for check in checks if check.name == name]
    assert len(found) == 1, checks
    return found[0]


def ours() -> set[Path]:
    return set(Path("/dev/shm").glob("ftrt-doctor*"))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A run on this host as it is, in a folder of its own."""
    directory, before = tmp_path_factory.mktemp("ledger"), ours()
    ended = asked("--json", "--ledger", str(directory))
    assert not any(directory.iterdir()) and ours() == before, "something was left"
    return ended


def test_on_this_host_nothing_fails(here):
    checks = json.loads(here.stdout)["checks"]
    assert here.returncode == 0, here.stdout
    assert {tuple(check) for check in checks} == {("name", "status", "found", "expected", "fix")}
    status = {check["name"]: check["status"] for check in checks}
    assert len(status) == len(checks) >= 20
    probed = ["mpirun", "robust mutex", "pidfd", "HDF5", "hard links", "mapped files", "ledger"]
    assert [status[name] for name in probed] == ["ok"] * len(probed)
    for check in checks:
        assert (check["fix"] == "") == (check["status"] == "ok"), check


def test_a_death_is_tried_where_ulfm_is(here):
    checks = {check["name"]: check for check in json.loads(here.stdout)["checks"]}
    if identify(find_mpirun()).ulfm:
        assert checks["ULFM"]["found"].startswith("a death was seen after")
    else:
        assert checks["MPI"]["status"] == "warn" and "ULFM" not in checks


def test_what_is_shown_fits_80_columns(tmp_path):
    ended = asked("-n", "300", "--ledger", str(tmp_path), COLUMNS="200", OMPI_MCA_pml="ucx")
    lines = ended.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("  type:"))
    typed = [line for line in lines if line.startswith("  type:")]
    assert any("unset OMPI_MCA_pml" in line for line in typed)
    assert lines[-1].split(", ")[0].endswith(" ok")


def test_an_mpirun_that_is_none(tmp_path):
    checks = mpi.checks("/bin/true")
    assert [check.status for check in checks] == ["fail"]
    assert "/bin/true is neither" in checks[0].found and "pip install" in checks[0].fix


def test_an_mpirun_that_hangs_is_ended_in_time(tmp_path, monkeypatch):
    mpirun, pids = tmp_path / "mpirun", tmp_path / "pids"
    mpirun.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" && exit\n'
        f"echo $$ >> {pids}\nsleep 300 &\necho $! >> {pids}\nwait\n"
    )
    mpirun.chmod(0o755)
    monkeypatch.setattr(mpi, "LIMIT_S", 1.0)
    before, begin = ours(), time.monotonic()
    found = named(mpi.checks(str(mpirun)), "mpirun")
    assert time.monotonic() - begin < 20
    assert found.status == "fail" and "nothing within 1 s" in found.found
    assert ours() == before
    for pid in pids.read_text().split():
        assert not _lives(int(pid)), pid


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_mpirun_that_starts_processes_of_another_mpi(tmp_path):
    """Each is a job of its own then, of one process."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" && exit\n'
        f'for last; do :; done\nexec {sys.executable} {mpi._PROGRAM} ring "$last"\n'
    )
    mpirun.chmod(0o755)
    found = named(mpi.checks(str(mpirun)), "mpirun")
    assert found.status == "fail" and "two jobs of one process" in found.found
    assert "mpi4py" in found.fix


def test_settings_that_do_harm(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    (settings,), (slurm,), (blas,) = mpi._settings(), mpi._slurm(), python.blas()
    assert (settings.status, settings.fix) == ("warn", "unset OMPI_MCA_pml")
    assert slurm.status == "warn" and "sbatch" in slurm.fix
    assert (blas.status, blas.fix) == ("warn", "unset OMP_NUM_THREADS")


def test_shared_memory_that_is_too_small(tmp_path):
    script = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    program = "from ftrt.doctor.host import shared_memory as s; c, = s(4); print(c.status, c.fix)"
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.stdout.startswith("fail mount -o remount,size="), ended


@pytest.mark.parametrize(
    "limit, name, status",
    [("-n 100", "open files", "fail"), ("-c unlimited", "core dumps", "warn")],
)
def test_limits(limit, name, status):
    program = (
        f"from ftrt.doctor.host import limits; print([c for c in limits(4) if c.name == {name!r}])"
    )
    ended = subprocess.run(
        ["bash", "-c", f'ulimit {limit} && exec {sys.executable} -c "{program}"'],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if "cannot modify limit" in ended.stderr:
        pytest.skip(ended.stderr)
    assert f"status='{status}'" in ended.stdout, ended
    assert "fix='ulimit -" in ended.stdout


def test_what_dead_processes_left_is_told_from_what_is_in_use(tmp_path):
    (tmp_path / "nccl-dead").write_bytes(bytes(4096))
    used = tmp_path / "nccl-used"
    used.write_bytes(bytes(4096))
    with open(used, "r+b") as file, mmap.mmap(file.fileno(), 4096):
        (check,) = host.left_behind(tmp_path)
        assert check.status == "warn" and check.fix == f"rm {tmp_path}/nccl-dead"
    assert named(host.left_behind(tmp_path / "nothing"), "left behind").status == "ok"


def test_a_quota_counts_as_fewer_cores(tmp_path):
    own = Path("/proc/self/cgroup").read_text().strip().split("::")[-1].strip("/")
    (tmp_path / own).mkdir(parents=True, exist_ok=True)
    (tmp_path / own / "cpu.max").write_text("50000 100000\n")
    (check,) = host.cores(1, tmp_path)
    assert check.status == "warn" and "quota of 0.5" in check.found


def test_a_ledger_in_memory_or_where_nothing_can_be_made(tmp_path, monkeypatch):
    assert named(storage.checks(tmp_path / "not" / "yet"), "ledger").status == "ok"
    assert not any(tmp_path.iterdir())
    assert named(storage.checks(Path("/dev/shm")), "stable").status == "warn"
    (refused,) = storage.checks(Path("/proc/ledger"))
    assert refused.status == "fail" and "--ledger" in refused.fix
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    stable = named(storage.checks(tmp_path), "stable")
    assert stable.status == "warn" and "LD_PRELOAD" in stable.fix or "power" not in stable.found


def test_the_kernels_probes_leave_no_process():
    before = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    checks = {check.name: check.status for check in kernel.checks()}
    assert checks["robust mutex"] == checks["pidfd"] == "ok"
    assert set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()) <= before


def test_a_check_that_breaks_is_a_finding(monkeypatch):
    def breaks(processes):
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr(host, "cores", breaks)
    monkeypatch.setattr(mpi, "checks", lambda mpirun: [])
    found = named(doctor.run_checks(), "cores")
    assert found.status == "fail" and "ZeroDivisionError: of nothing" in found.found


def test_usage():
    result = CliRunner().invoke(main, ["doctor", "-n", "0"])
    assert result.exit_code == 2 and "at least 1" in result.output
