"""Ledger directories that cannot be used, through the commands: one sentence, status 2."""

from __future__ import annotations

import os

import numpy as np
import pytest
from click.testing import CliRunner
from ledger_support import JOB, mounted, open_ledger

from ftrt.cli import main
from ftrt.ledger import layout, record, seal
from ftrt.ledger.log import CONSUMED


@pytest.fixture
def used(pool):
    seqs = np.arange(1, 100, 2, dtype=np.uint64)
    open_ledger(pool).stream(CONSUMED, "a", 1, 0).append_seqs(seqs)
    return pool.directory / "e000001-r0000-s000.h5"


def refused(command: list, says: str) -> None:
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.exit_code == 2, result.output
    assert len(result.output.strip().splitlines()) == 1 and says in result.output


def flip_a_word(path) -> None:
    at = int(np.fromfile(path, layout.USER, 1)[0]["offsets"][3])
    with open(path, "r+b") as file:
        file.seek(at + 19)
        byte = file.read(1)[0]
        file.seek(at + 19)
        file.write(bytes([byte ^ 4]))


def test_audit_of_a_truncated_segment(used):
    os.truncate(used, 5000)
    refused(["audit", used.parent], f"{used.name}: truncated to 5000 of")


@pytest.mark.parametrize("sealed", [False, True])
def test_audit_of_a_flipped_bit(used, sealed):
    if sealed:
        seals = seal.close_rank(used.parent, 1, 0)
        record.create_record(used.parent, {"epoch": 2, "job": JOB, "seals": seals})
    flip_a_word(used)
    refused(["audit", used.parent], used.name)


def test_audit_of_a_newer_version(used):
    user = np.fromfile(used, layout.USER, 1)
    user["version"] = layout.VERSION + 1
    with open(used, "r+b") as file:
        file.write(user.tobytes())
    refused(["audit", used.parent], "read it with that version")


@pytest.fixture
def disk(tmp_path, request):
    with mounted(tmp_path, request.param):
        yield tmp_path


@pytest.mark.parametrize(
    "disk, options, says",
    [
        ("size=200k", [], "is full; free at least 1 MiB"),
        ("ro", [], "is read-only for this user"),
        ("size=4m", ["--stable", "power"], "is in memory (tmpfs)"),
    ],
    indirect=["disk"],
)
def test_run_on_a_disk_that_cannot_hold_it(disk, options, says):
    refused(["run", "-n", 2, "--ledger", disk, *options, __file__], says)
    assert os.listdir(disk) == []


def test_run_in_a_directory_of_another_job_or_in_use(used):
    refused(["run", "-n", 2, "--ledger", used.parent, __file__], "choose another directory")
    with record.lock_directory(used.parent):
        refused(["run", "-n", 2, "--ledger", used.parent, __file__], "in use by a running job")


@pytest.mark.parametrize("left", ["e000001-r0000-s000.h5", "epochs"])
def test_run_in_what_is_left_of_another_job(used, left):
    directory = used.parent
    (directory / "job.json").unlink()
    for path in (used, directory / "epochs" / "000001.json"):
        if left not in str(path):
            path.unlink()
    refused(["run", "-n", 2, "--ledger", directory, __file__], "whose job.json is missing")
    assert not (directory / "run").exists()
