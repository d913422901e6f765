"""The channel of messages keeps to the contract between two processes of a real mpirun."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftrt.errors import UsageError
from ftrt.transport import notes
from ftrt.transport.mpi_plane import MpiPlane

HERE = Path(__file__).parent
FLAGS = "--oversubscribe --bind-to none --with-ft ulfm --mca pml ob1 --mca btl self,tcp"


def run(processes: int, program: str, *arguments) -> subprocess.CompletedProcess:
    mpirun = Path(sys.executable).parent / "mpirun"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    flags = [*FLAGS.split(), "-n", str(processes)]
    return subprocess.run(
        [mpirun, *as_root, *flags, sys.executable, HERE / program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )


def test_the_contract_between_two_processes():
    done = run(2, "mpi_contract.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "failed" not in done.stdout


def test_whoever_goes_on_calling_as_peers_die_survives_inside_mpi(tmp_path):
    """Seven kills; without the look at the board most such runs end with SIGSEGV."""
    done = run(8, "mpi_kills.py", tmp_path / "board", "1")
    assert "survived 7" in done.stdout, done.stdout + done.stderr


def test_a_note_that_was_damaged_or_never_came_is_not_read():
    note = notes.blank()
    assert notes.read(note) is None
    notes.write(note, 1, 2, 3)
    assert notes.read(note) == [1, 2, 3, 0, 0, 0, 0]
    for word in range(notes.NOTE_WORDS):
        notes.write(note, 1, 2, 3)
        note[word] ^= 1 << 40
        assert notes.read(note) is None


def link(key, dest):
    return SimpleNamespace(key=key, source=dest, dest=dest)


class SilentWire:
    """A wire to a process that never answers, with as few tags as one channel needs."""

    process, tag_limit = 0, 7

    def send(self, buffer, process, tag):
        return object()

    receive = send

    def done(self, request):
        return False

    def fetch(self, buffer, process, tag):
        return False

    def retire(self, receives, sends, memory):
        pass


def test_tags_end_at_the_bound_of_this_mpi():
    plane = MpiPlane(SilentWire(), lambda rank: rank)
    plane.make_send(link(1, 1), 1000, slots=2, slot_bytes=64)
    plane.make_send(link(1, 2), 1000, slots=2, slot_bytes=64)  # each process has tags of its own
    with pytest.raises(UsageError, match="tags"):
        plane.make_send(link(1, 1), 1001, slots=2, slot_bytes=64)


def test_no_receiver_before_there_is_an_offer():
    assert MpiPlane(SilentWire(), lambda rank: rank).make_recv(link(1, 0), -1) is None
