"""What is publicly known of ULFM's failures, as real jobs in which processes really die."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

HERE = Path(__file__).parent
PROGRAM = HERE / "situations_program.py"
DEATH = "death_while_all_are_in_a_collective"


def went_through(folder: Path, killed: int, *names: str) -> dict[str, str]:
    """A job of four ranks in these situations; what each of them saw, by file name."""
    seen = folder / "seen"
    seen.mkdir()
    options = ["-n", 4, "--spares", killed + 2, "--evict-timeout-s", 3]
    ended = run_job(folder, options, PROGRAM, seen, *names, limit_s=80)
    assert ended.status == 0, ended.output
    assert "Segmentation fault" not in ended.output
    # Nobody crashed inside MPI: who died was killed, or could not be helped out of a call.
    stuck = [event["rank"] for event in ended.named("stuck")]
    died = [event["rank"] for event in ended.named("died")]
    others = [[rank for rank in ranks if rank != 3] for ranks in (died, stuck)]
    assert others[0] == others[1], ended.output
    assert len(died) >= killed and len(stuck) < 3 and (names or 0 in stuck), ended.output
    found = {path.name: path.read_text() for path in seen.iterdir()}
    assert [found.pop(f"works-{rank}") for rank in range(4)] == ["True"] * 4
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, str]:
    return went_through(tmp_path_factory.mktemp("situations"), 5)


def said(seen: dict[str, str], situation: str) -> dict[int, str]:
    """What each rank saw of a situation; one that came when it was over saw nothing."""
    names = [name.rpartition("-") for name in seen if f"-{situation}-" in name]
    return {int(rank): seen[f"{name}-{rank}"] for name, _, rank in names}


def test_revoke_while_a_communicator_is_made(seen):
    expected = {0: "raised", 1: "raised", 2: "raised", 3: "revoked"}
    assert said(seen, "revoked_while_it_is_made") == expected


def test_death_while_a_communicator_is_made(seen):
    assert said(seen, "death_while_it_is_made") == dict.fromkeys(range(3), "raised")


def test_revoke_then_shrink(seen):
    assert said(seen, "revoked") == {0: "revoked"} | dict.fromkeys(range(1, 4), "raised")
    beside = said(seen, "death_beside_a_revoke")
    assert set(beside.values()) <= {"raised"} and 3 not in beside


def test_failure_in_another_communicator(seen):
    expected = {0: "went on", 1: "went on", 2: "raised"}
    assert said(seen, "death_in_another_communicator") == expected


def test_failure_in_a_communicator_that_others_wait_on(seen):
    found = said(seen, "death_in_a_guarded_communicator")
    assert found == dict.fromkeys(range(3), "raised")


def test_death_while_everybody_is_in_a_collective(seen):
    assert said(seen, DEATH) == dict.fromkeys(range(3), "raised")


def test_a_collective_that_does_not_end(seen):
    found = said(seen, "a_collective_that_does_not_end")
    assert found == dict.fromkeys(range(1, 4), "raised")


@pytest.mark.long
def test_the_tenth_repair(tmp_path):
    found = went_through(tmp_path, 10, *[DEATH] * 10)
    assert all(found[f"{epoch}-{DEATH}-0"] == "raised" for epoch in range(1, 11))


EARLY = """
import os, signal, sys
from pathlib import Path
from ftrt.host.words import Field
from ftrt.runtime import job

mark = Path(os.environ["FTRT_LEDGER"], "run", "struck-" + os.environ["FTRT_ATTEMPT"])
where = sys.argv[int(os.environ["FTRT_ATTEMPT"])]
chosen = os.environ["OMPI_COMM_WORLD_RANK"] == "1"

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if chosen and where == "before":
    die()
if chosen and where == "in MPI_Init":
    from mpi4py import rc
    rc.initialize = False
    from mpi4py import MPI
    import threading
    threading.Timer(0.005, die).start()
    MPI.Init_thread()
    die()
if chosen and where == "in init":
    job.Job._make_plane = die
import ftrt
with ftrt.init() as rt:
    print("rank", rt.rank, "is", rt.role.value, "in epoch", rt.epoch, flush=True)
"""


def early(folder: Path, options: list, *where: str):
    program = folder / "early.py"
    program.write_text(EARLY)
    return run_job(folder, ["-n", 2, *options], program, *where, limit_s=50)


def test_failure_before_init_is_a_restart_and_in_init_a_spares(tmp_path):
    ended = early(tmp_path, ["--spares", 1, "--restarts", 1], "before", "in init")
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 2
    assert "was killed by SIGKILL" in ended.output or "was killed, or left" in ended.output
    (death,) = ended.named("died")
    assert (death["rank"], death["by"]) == (1, "mutex")
    assert "rank 1 is recovered in epoch 2" in ended.output


@pytest.mark.long
@pytest.mark.parametrize("where", ["before", "in MPI_Init"])
def test_failure_before_init_without_a_restart_is_a_named_end(tmp_path, where):
    ended = early(tmp_path, ["--spares", 1], where)
    assert ended.status == 3, ended.output
    assert "process 1 was killed" in ended.output and "--restarts" in ended.output
    job = ended.report["job"][:8]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"ftrt-{job}")]
