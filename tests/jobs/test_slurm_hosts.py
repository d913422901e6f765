"""``jobs/ftrt.sbatch`` on nodes that are hosts of their own, of which one loses power."""

import sys
from pathlib import Path

import pytest
from hosts import namespaces

from .slurm import Node, cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, STREAM = ROOT / "jobs" / "ftrt.sbatch", ROOT / "apps" / "stream.py"
MESSAGES = 3000
SLOW = [STREAM, "--messages", MESSAGES, "--batch", 1, "--delay-us", 1000]


@pytest.fixture
def machines():
    if reason := namespaces.reason_not():
        pytest.skip(reason)
    with namespaces.hosts(["n1", "n2"], [ROOT]) as made:
        yield made


@pytest.fixture
def slurm(machines):
    # The first one has the controller, so a job of one node goes to the other.
    nodes = [
        Node(host.name, host.name, host.address, host.command, weight=10 - index)
        for index, host in enumerate(machines)
    ]
    root = machines.shared / "slurm"
    root.mkdir()
    with cluster(root, nodes=nodes, run=Path("/tmp/slurm")) as started:
        yield started


@pytest.fixture
def submit(machines, slurm):
    command = machines.shared / "ftrt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftrt.cli "$@"\n')
    command.chmod(0o755)

    def queue(*options, **more):
        settings = {"FTRT": command, "PYTHONPATH": ROOT, **machines.links, **more}
        job = slurm.submit(machines.shared, *options, SCRIPT, *SLOW, **settings)
        job.await_moment(lambda: (job.ledger / "epochs" / "000001.json").exists())
        return job

    return queue


def ended_well(job, machines, ranks):
    assert job.end(110.0) == ("COMPLETED", "0:0"), job.output
    count = (ranks - 1) * MESSAGES
    assert f"ftrt: audit ok: sent {count}, consumed {count}, duplicates 0, losses 0" in job.output
    left = [name for name in machines[0].run("ls", "/dev/shm").split() if name.startswith("ftrt")]
    assert left == []


@pytest.mark.slurm
def test_a_node_loses_power(machines, submit):
    options = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    job = submit(*options, RANKS=3, SPARES=1)
    assert "ftrt: hosts n1, n2" in job.output
    machines[1].kill()
    ended_well(job, machines, 3)
    assert job.facts()["Restarts"] == "0"
    assert "1 host lost: n2; going on with n1" in job.output


@pytest.mark.slurm
def test_the_node_with_the_script_loses_power(machines, submit):
    job = submit("--nodes=1", "--ntasks=3")
    assert job.facts()["BatchHost"] == "n2"
    machines[1].kill()
    ended_well(job, machines, 2)
    assert (job.facts()["BatchHost"], job.facts()["Restarts"]) == ("n1", "1")
    assert "2 attempts" in job.output
