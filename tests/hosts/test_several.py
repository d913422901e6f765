"""Jobs over several hosts, with ranks that die, on hosts made of namespaces."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrt.oracle import check_effects

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from namespaces import hosts, reason_not
from runtime_job import ROOT, STREAM
from several import Job, effects, left_behind

CLEAN = {"losses": [], "duplicates": [], "ambiguous": []}
REASON = reason_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture
def two():
    with hosts(["a", "b"], [ROOT]) as made:
        yield made


@pytest.mark.long
def test_spares_of_either_host_take_over_ranks_of_the_other(two):
    """Processes 0, 2 run on a, 1 and 3 on b: rank 0 goes on on a, then rank 1 too, then on b."""
    faults = ["kill:1@300msg", "kill:0@700msg", "kill:1@1200msg"]
    options = ["-n", 2, "--spares", 3, *(w for f in faults for w in ("--fault", f))]
    ended = Job(two, options, STREAM, "--messages", 2000).end()
    assert ended.status == 0, ended.output
    assert ended.report["audit"]["consumed"] == 2000
    acting = [[m["process"] for m in record["members"]] for record in ended.records]
    assert acting == [[0, 1], [0, 2], [3, 2], [3, 4]]
    assert all(record["hosts"] == [0, 1] for record in ended.records)
    assert len(ended.named("recovery")) == 3
    assert left_behind(two) == []


def streaming(made, *options, messages=3000, delay_us=500):
    """A stream from rank 0 on a to rank 1 on b, under way; its job, and where it notes effects."""
    notes = made.outside / "effects"
    program = [STREAM, "--messages", messages, "--delay-us", delay_us]
    program += ["--effects", made.shared / "effects"]
    job = Job(made, ["-n", 2, *options], *program)
    job.await_effects(notes, 300)
    return job, notes


def assert_complete(ended, messages=3000):
    """The program compared its sums with the formula, and the ledger has all once."""
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert (audit["consumed"], audit["losses"], audit["duplicates"]) == (messages, 0, 0)


def test_a_lost_host_takes_mpirun_with_it_and_the_job_goes_on_where_it_can(two):
    job, _ = streaming(two, "--stable", "host", "--restarts", 1)
    two[1].kill()
    lost = time.monotonic()
    job.await_epoch(2)
    assert time.monotonic() - lost < 10.0
    ended = job.end()
    assert_complete(ended)
    assert ended.report["attempts"] == 2
    assert "1 host lost: b; going on with a" in ended.output
    assert left_behind(two) == []


@pytest.mark.long
def test_what_only_its_memory_had_does_not_survive_a_host(two):
    job, _ = streaming(two, "--restarts", 1)
    two[1].kill()
    ended = job.end()
    assert ended.status == 3
    assert "its class (process) does not survive that" in ended.output
    assert "--stable host" in ended.output
    assert left_behind(two) == []


@pytest.mark.long
def test_a_host_that_falls_silent_is_replaced_by_a_spare(two):
    """Its network goes before it does, so mpirun hears nothing of its end."""
    job, _ = streaming(two, "--stable", "host", "--spares", 1, "--evict-timeout-s", 2)
    two[1].link(up=False)
    two[1].kill()
    ended = job.end()
    assert_complete(ended)
    assert ended.report["attempts"] == 1
    assert [record["hosts"] for record in ended.records] == [[0, 1], [0]]
    assert [m["process"] for m in ended.records[1]["members"]] == [0, 2]
    assert left_behind(two) == []


@pytest.mark.long
@pytest.mark.parametrize(("cut_s", "epochs"), [(0.8, 1), (2.7, 2)], ids=["short", "longer"])
def test_a_cut_that_heals_costs_an_epoch_at_most(two, cut_s, epochs):
    job, notes = streaming(two, "--evict-timeout-s", 4)
    two[1].link(up=False)
    time.sleep(cut_s)
    two[1].link(up=True)
    ended = job.end()
    assert_complete(ended)
    assert check_effects(notes, {(1, "numbers", 0): 3000}) == CLEAN
    assert len(ended.named("host silent")) == 2 and len(ended.named("host heard")) == 2
    assert len(ended.records) == epochs
    assert all([m["process"] for m in r["members"]] == [0, 1] for r in ended.records)
    assert left_behind(two) == []


@pytest.mark.long
@pytest.mark.parametrize("stable", ["process", "host"])
def test_the_side_of_a_cut_that_is_left_out_never_goes_on(two, stable):
    """Both sides stop committing; the one with mpirun goes on with its spare, then the link heals.

    What the other side had written when it stopped counts, whatever the class: nothing is consumed
    twice, by the account of effects too.
    """
    options = ["--stable", stable, "--spares", 1, "--evict-timeout-s", 3]
    job, notes = streaming(two, *options, messages=6000)
    two[1].link(up=False)
    job.await_epoch(2)
    time.sleep(0.5)
    two[1].link(up=True)
    ended = job.end()
    assert_complete(ended, 6000)
    assert check_effects(notes, {(1, "numbers", 0): 6000}) == CLEAN
    assert [entry["host"] for entry in ended.named("fenced")] == ["b"]
    assert [record["hosts"] for record in ended.records] == [[0, 1], [0]]
    assert left_behind(two) == []


@pytest.mark.long
def test_without_a_spare_a_cut_ends_the_attempt_and_the_ledger_goes_on(two):
    job, _ = streaming(two, "--stable", "host", "--restarts", 1, "--evict-timeout-s", 2)
    two[1].link(up=False)
    job.await_event("failed")
    ended = job.end()
    assert_complete(ended)
    assert ended.report["attempts"] == 2 and ended.records[-1]["attempt"] == 2
    two[1].link(up=True)
    assert left_behind(two) == []


@pytest.mark.long
def test_a_slow_link_evicts_nobody(two):
    for host in two:
        host.slow(400_000)
    program = [STREAM, "--messages", 300, "--size", 1024]
    ended = Job(two, ["-n", 2, "--spares", 1, "--evict-timeout-s", 3], *program).end()
    assert_complete(ended, 300)
    assert len(ended.records) == 1 and not ended.named("fenced")
    assert left_behind(two) == []


@pytest.fixture
def two_caches():
    """Two hosts that see the ledger's directory as over a network: each through its own cache."""
    with hosts(["a", "b"], [ROOT], cached=True) as made:
        yield made


@pytest.mark.parametrize("stable", ["process", pytest.param("host", marks=pytest.mark.long)])
def test_spares_take_over_from_what_the_other_host_wrote_out(two_caches, stable):
    faults = ["kill:1@300msg", "kill:0@700msg", "kill:1@1200msg"]
    options = ["-n", 2, "--spares", 3, "--stable", stable]
    options += [word for fault in faults for word in ("--fault", fault)]
    ended = Job(two_caches, options, STREAM, "--messages", 2000).end()
    assert_complete(ended, 2000)
    assert len(ended.named("recovery")) == 3
    assert left_behind(two_caches) == []


@pytest.mark.long
@pytest.mark.parametrize("silently", [False, True], ids=["heard", "unheard"])
def test_what_was_not_written_out_is_lost_with_its_host_and_nothing_else(two_caches, silently):
    """In class host: whatever a mark does not cover was never freed by its sender, and comes again.

    Either mpirun ends with the host, or a spare goes on from the host's last marks.
    """
    options = ["--stable", "host", "--restarts", 1, "--spares", 1, "--evict-timeout-s", 2]
    job, notes = streaming(two_caches, *options)
    if silently:
        two_caches[1].link(up=False)
    two_caches[1].kill()
    ended = job.end()
    assert_complete(ended)
    assert ended.report["attempts"] == (1 if silently else 2)
    assert effects(notes) > 3000  # some were void, and happened anew
    assert left_behind(two_caches) == []


@pytest.mark.long
def test_the_class_of_the_process_is_not_enough_for_a_host(two_caches):
    job, _ = streaming(two_caches, "--restarts", 1)
    two_caches[1].kill()
    ended = job.end()
    assert ended.status == 3 and "--stable host" in ended.output


def test_a_directory_that_only_one_host_sees_is_refused(two):
    words = [sys.executable, "-m", "ftrt.cli", "run", "--hosts", "a,b", "-n", 2]
    words = ["env", f"PYTHONPATH={ROOT}", *(f"{k}={v}" for k, v in two.environment.items()), *words]
    done = subprocess.run(
        two[0].command(*words, "--ledger", "/tmp/mine", STREAM), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "/tmp/mine: what this host writes there is not seen by b" in done.stderr
    two[1].kill()
    done = subprocess.run(
        two[0].command(*words, "--ledger", two.shared / "x", STREAM), capture_output=True, text=True
    )
    assert done.returncode == 2 and "mpirun starts nothing on b" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, None)]
)
def test_the_launcher_is_told_to_end_and_nothing_stays_on_any_host(two, signum, status):
    """Then the job goes on with ``--resume``, in which the hosts are named in another order."""
    job, _ = streaming(two, "--stable", "host", "--spares", 1)
    job.signal(signum)
    ended = job.end(20)
    assert ended.status == (status or ended.status)
    assert left_behind(two, 8.0) == []
    again = ["--stable", "host", "--resume", "--hosts", "b,a"]
    ended = Job(two, ["-n", 2, *again], *job.program, where=1).end()
    assert_complete(ended)
    assert left_behind(two) == []


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["head", "other"])
def test_an_agent_that_dies_ends_the_attempt_everywhere(two, which):
    job, _ = streaming(two, "--stable", "host", "--restarts", 1)
    two[which].run("pkill", "-KILL", "-f", "ftrt.host.agent")
    ended = job.end()
    assert_complete(ended)
    assert ended.report["attempts"] == 2
    assert left_behind(two) == []


COLLECTIVE = """
import numpy as np, ftrt
from ftrt.errors import PeerFailed
with ftrt.init() as rt:
    done = 0 if rt.role is not ftrt.Role.RECOVERED else None
    while done is None or done < 40:
        try:
            comm = rt.comm
            latest = comm.allreduce(-1 if done is None else done, op=ftrt_max)
            total = comm.allreduce(1)
        except (PeerFailed, MPI.Exception):
            continue
        assert total == rt.size
        done = latest + 1
        with rt.phase("step", 30.0):
            time.sleep(0.02)
        if done == 15 and rt.rank == 1 and rt.role is ftrt.Role.INITIAL:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_the_communicator_of_the_members_spans_the_hosts_that_are_left(two):
    program = two.shared / "collective.py"
    head = "import os, signal, time\nfrom mpi4py import MPI\nftrt_max = MPI.MAX\n"
    program.write_text(head + COLLECTIVE)
    ended = Job(two, ["-n", 3, "--spares", 1], program).end()
    assert ended.status == 0, ended.output
    assert [m["process"] for m in ended.records[-1]["members"]] == [0, 3, 2]
    assert left_behind(two) == []


@pytest.mark.long
def test_of_three_hosts_the_one_that_is_cut_off_is_left_out():
    with hosts(["a", "b", "c"], [ROOT], cached=True) as three:
        notes = three.outside / "effects"
        program = [STREAM, "--messages", 3000, "--delay-us", 500]
        options = ["-n", 3, "--spares", 3, "--stable", "host", "--evict-timeout-s", 3]
        job = Job(three, options, *program, "--effects", three.shared / "effects")
        job.await_effects(notes, 300)
        three[2].link(up=False)
        job.await_epoch(2)
        three[2].link(up=True)
        ended = job.end()
        assert ended.status == 0, ended.output
        assert ended.report["audit"]["consumed"] == 6000
        assert check_effects(notes, {(0, "numbers", 1): 3000, (0, "numbers", 2): 3000}) == CLEAN
        assert [record["hosts"] for record in ended.records] == [[0, 1, 2], [0, 1]]
        assert [entry["host"] for entry in ended.named("fenced")] == ["c"]
        assert left_behind(three) == []
