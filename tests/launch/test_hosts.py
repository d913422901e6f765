"""Which hosts a job runs on, as far as it can be told without any."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ftrt.errors import LedgerError, UsageError
from ftrt.launch.hosts import Place, ask, named, own_first
from ftrt.ledger.record import check_directory

SLURM = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}


def test_hosts_are_named_by_a_list_or_a_file(tmp_path):
    assert named("a,b, c", {}) == ["a", "b", "c"]
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode1 slots=4\n\n  node2  # the other\n")
    assert named(str(path), {}) == ["node1", "node2"]
    assert named(None, {}) == []


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("a,,b", "names no host"),
        ("", "names no host"),
        ("a,b,a", "names a twice"),
        ("a:4,b", "neither a host nor a file"),
        ("no/such/file", "neither a host nor a file"),
    ],
)
def test_what_names_no_hosts_is_refused(option, says):
    with pytest.raises(UsageError, match=says):
        named(option, {})


def test_a_slurm_allocation_names_its_nodes(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert named(None, SLURM) == ["n1", "n2", "n3"]
    assert named(None, SLURM | {"SLURM_JOB_NUM_NODES": "1"}) == []
    assert named("a,b", SLURM) == ["a", "b"]
    scontrol.unlink()
    with pytest.raises(UsageError, match="cannot be listed.*--hosts"):
        named(None, SLURM)


def test_this_host_comes_first_and_must_be_one_of_them():
    mine = socket.gethostname()
    assert own_first(["elsewhere.invalid", mine]) == [mine, "elsewhere.invalid"]
    assert own_first(["elsewhere.invalid", "127.0.0.1"])[0] == "127.0.0.1"
    with pytest.raises(UsageError, match="is none of elsewhere.invalid"):
        own_first(["elsewhere.invalid"])


def mpirun(tmp_path: Path, answer: str) -> str:
    """One that prints an answer."""
    path = tmp_path / "mpirun"
    path.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    path.chmod(0o755)
    return str(path)


def test_who_does_not_answer_or_does_not_see_the_directory_is_told(tmp_path):
    path = mpirun(tmp_path, "ftrt-host 0 " + "0" * 32 + " -")
    answers = ask(path, ["me", "blind"], tmp_path)
    assert (answers.found, answers.silent, answers.blind) == (["me", "blind"], [], ["blind"])
    answers = ask(mpirun(tmp_path, "hello"), ["me", "silent"], tmp_path)
    assert (answers.found, answers.silent) == (["me"], ["silent"])
    assert not list(tmp_path.glob(".probe-*"))


def test_two_names_of_one_machine_are_one_host(tmp_path):
    from ftrt.ledger.identity import host_identity

    path = mpirun(tmp_path, f"ftrt-host 0 {host_identity().hex()} x")
    assert ask(path, ["me", "me-too"], tmp_path).found == ["me"]


def test_processes_are_spread_and_settings_passed_on():
    place = Place(["127.0.0.1", "127.0.0.2"])
    options = place.options(5, {"FTRT_JOB": "j", "HOME": "/", "PYTHONPATH": "p"} | place.settings)
    assert options[:4] == ["--host", "127.0.0.1:3,127.0.0.2:3", "--map-by", "node"]
    passed = options[5::2]
    assert {"FTRT_JOB", "FTRT_HOSTS", "FTRT_HEAD", "FTRT_TOKEN", "PYTHONPATH"} == set(passed)
    assert place.token not in options  # for all to read in the list of processes
    place.close()
    assert Place(["127.0.0.1"]).settings == {}


def test_class_host_is_refused_where_no_other_host_sees_the_directory(tmp_path):
    with pytest.raises(LedgerError, match="other hosts do not see it.*--stable process or power"):
        check_directory(tmp_path / "ledger", stable="host")
    check_directory(tmp_path / "ledger", stable="host", seen_elsewhere=True)
