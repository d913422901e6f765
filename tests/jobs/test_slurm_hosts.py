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
    nodes = [Node(host.name, host.name, host.address, host.command) for host in machines]
    root = machines.shared / "slurm"
    root.mkdir()
    with cluster(root, nodes=nodes, run=Path("/tmp/slurm")) as started:
        yield started


@pytest.mark.slurm
def test_a_node_loses_power(machines, slurm):
    command = machines.shared / "ftrt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftrt.cli "$@"\n')
    command.chmod(0o755)
    options = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    settings = {"FTRT": command, "PYTHONPATH": ROOT, "RANKS": 3, "SPARES": 1}
    job = slurm.submit(machines.shared, *options, SCRIPT, *SLOW, **settings, **machines.links)
    job.await_moment(lambda: (job.ledger / "epochs" / "000001.json").exists())
    assert "ftrt: hosts n1, n2" in job.output
    machines[1].kill()
    assert job.end(110.0) == ("COMPLETED", "0:0"), job.output
    assert job.facts()["Restarts"] == "0"
    assert "1 host lost: n2; going on with n1" in job.output
    count = 2 * MESSAGES
    assert f"ftrt: audit ok: sent {count}, consumed {count}, duplicates 0, losses 0" in job.output
    left = [name for name in machines[0].run("ls", "/dev/shm").split() if name.startswith("ftrt")]
    assert left == []
