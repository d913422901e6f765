"""Bad input: one sentence that says what to do, status 2, nothing started."""

import importlib.util
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.launch.mpirun import Mpi, command, find_mpirun, identify
from ftrt.launch.slurm import check_slots, slots


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("print('started')")
    return str(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "0"], "-n must be at least 1"),
        (["-n", "2", "--spares", "-1"], "cannot be negative"),
        (["-n", "1000", "--spares", "25"], "more than the 1024 processes"),
        (["-n", "2", "--fault", "kill:2@3msg"], "there is no rank 2"),
        (["-n", "2", "--fault", "kill:1@soon"], "'kill:1@soon' is malformed; for example"),
        (["-n", "2", "--fault", "gpu:1@1s"], "add --plane nccl"),
        (["-n", "2", "--fault", "link:1-1@1s+1s"], "has no link to itself"),
        (["-n", "2", "--fault", "eio:1@1s"], "add --stable power"),
        (["-n", "2", "--fault", "melt:1@1s"], "unknown kind 'melt'"),
        (["-n", "2", "--stall-timeout-s", "0"], "--stall-timeout-s must be greater than 0"),
        (["-n", "2", "--evict-timeout-s", "nan"], "--evict-timeout-s must be greater than 0"),
        (["-n", "2", "--frob"], "there is no option --frob"),
        (["-n", "2", "--mpirun", "/no/such"], "--mpirun names '/no/such'"),
        (["-n", "2", "--json", "/no/such/x.json"], "its folder does not exist"),
        (["-n", "2", "--json", "/tmp"], "is a folder; name a file in it"),
        (["-n", "2", "--stall-timeout-s", "1", "--evict-timeout-s", "2"], "must not be below"),
        (["-n", "2", "--evict-timeout-s", "0.05"], "must be below the evict time-out 0.05 s"),
    ],
)
def test_one_sentence_and_status_2(program, tmp_path, options, says):
    ledger = tmp_path / "ledger"
    result = CliRunner().invoke(main, ["run", "--ledger", str(ledger), *options, program])
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not ledger.exists()


@pytest.mark.parametrize(("name", "value"), [("FTRT_SHM", "yes"), ("FTRT_INIT_TIMEOUT_S", "-1")])
def test_a_wrong_setting_leaves_no_directory(program, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    options = ["run", "-n", "1", "--ledger", str(tmp_path / "ledger"), program]
    result = CliRunner().invoke(main, options)
    assert (result.exit_code == 2) and name in result.output
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    ("listed", "have"), [("2(x2),1", 5), ("4", 4), ("1(x2)", 2), ("new(notation)", None)]
)
def test_slots_of_an_allocation(listed, have):
    environment = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": listed}
    assert slots(environment) == have
    assert slots({"SLURM_TASKS_PER_NODE": listed}) is None
    if have is not None:
        check_slots(have - 1, 1, environment)
        with pytest.raises(UsageError, match=rf"has {have} tasks: ask for --ntasks={have + 1}"):
            check_slots(have - 1, 2, environment)
        check_slots(have - 1, 2, {**environment, "FTRT_OVERSUBSCRIBE": "1"})


def test_more_spares_than_slots_of_the_allocation(program, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3")
    ledger = tmp_path / "ledger"
    options = ["run", "-n", "2", "--spares", "2", "--ledger", str(ledger), program]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2 and "ask for --ntasks=4" in result.output
    assert not ledger.exists()


def test_a_ledger_without_a_name(program):
    result = CliRunner().invoke(main, ["run", "-n", "2", "--ledger", "", program])
    assert result.exit_code == 2
    assert result.output == "ftrt: --ledger names no folder; leave it out for a new one here\n"


def test_the_nccl_plane_without_its_packages(program, tmp_path, monkeypatch):
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    monkeypatch.delenv("FTRT_NCCL_LIBRARY", raising=False)
    ledger = tmp_path / "ledger"
    options = ["run", "-n", "2", "--plane", "nccl", "--ledger", str(ledger), program]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "pip install 'ftrt[cuda12]'" in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not ledger.exists()


def test_class_power_in_memory_leaves_no_directory(program):
    ledger = Path(f"/dev/shm/ftrt-test-{os.getpid()}")
    options = ["run", "-n", "1", "--stable", "power", "--ledger", str(ledger), program]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "--stable process" in result.output
    assert not ledger.exists()


def test_program_that_is_not_there(tmp_path):
    result = CliRunner().invoke(main, ["run", "-n", "1", str(tmp_path / "nothing.py")])
    assert result.exit_code == 2
    assert "there is no program" in result.output


def test_program_that_cannot_be_executed(tmp_path):
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\n")
    result = CliRunner().invoke(main, ["run", "-n", "1", str(path)])
    assert result.exit_code == 2
    assert "chmod +x" in result.output


def _tool(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_other_mpi_is_refused(tmp_path):
    for answer in ("MVAPICH", "mpirun (Open MPI) 4.1.6", ""):
        tool = _tool(tmp_path / "mpirun", f"echo '{answer}'")
        with pytest.raises(UsageError, match="neither Open MPI 5 or later nor MPICH"):
            identify(tool)


def test_what_an_mpirun_says_of_itself(tmp_path, monkeypatch):
    monkeypatch.delenv("FTRT_ULFM", raising=False)
    hydra = _tool(tmp_path / "hydra", "printf 'HYDRA build details:\\n    Version:      5.0.2\\n'")
    assert identify(hydra) == Mpi(hydra, "MPICH 5.0.2", hydra=True, ulfm=False)
    tool = _tool(tmp_path / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    assert identify(tool) == Mpi(tool, "Open MPI 5.0.11", hydra=False, ulfm=True)
    _tool(tmp_path / "ompi_info", "echo options:ft_mpi_support:no")
    assert not identify(tool).ulfm
    _tool(tmp_path / "ompi_info", "echo options:ft_mpi_support:yes")
    assert identify(tool).ulfm
    monkeypatch.setenv("FTRT_ULFM", "0")
    assert not identify(tool).ulfm


def test_order_in_which_mpirun_is_found(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    named, other = _tool(tmp_path / "mpirun", ""), _tool(tmp_path / "bin" / "mpirun", "")
    monkeypatch.setenv("FTRT_MPIRUN", other)
    assert find_mpirun(named) == named
    assert find_mpirun() == other
    monkeypatch.delenv("FTRT_MPIRUN")
    monkeypatch.setattr("sys.executable", str(tmp_path / "nowhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_mpirun() == other
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="there is no mpirun"):
        find_mpirun()


def test_command_line():
    line = command(
        Mpi("mpirun", "Open MPI 5.0.11", False, True), 5, "app.py", ["--x", "1"], "/dev/shm/x"
    )
    assert line[:3] == ["mpirun", "--with-ft", "ulfm"]
    assert ("--allow-run-as-root" in line) == (os.geteuid() == 0)
    assert line[line.index("-n") + 1] == "5"
    assert line[-2:] == ["--x", "1"]


def test_command_line_without_ulfm():
    line = command(Mpi("mpirun", "Open MPI 5.0.11", False, False), 2, "app.py", [], "/dev/shm/x")
    assert "--with-ft" not in line
    line = command(Mpi("mpiexec", "MPICH 5.0.2", True, False), 2, "app.py", [], "/dev/shm/x")
    assert line[0] == "mpiexec" and "--mca" not in line and "--oversubscribe" not in line
    assert line[-5:-3] == ["-n", "2"]
