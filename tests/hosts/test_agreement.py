"""Agents agree over real messages, also when the coordinator dies beside its record."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .agreement_job import shown, table_of

HERE = Path(__file__).parent
FLAGS = "--oversubscribe --bind-to none --with-ft ulfm --mca pml ob1 --mca btl self,tcp -n"
AGENTS = 5


CASES = [(way, m) for way in ("sweep", "tree") for m in ("never", "first", "before", "after")]


@pytest.mark.parametrize(("way", "moment"), [*CASES, ("sweep", "late")])
def test_all_survivors_learn_the_same(tmp_path, way, moment):
    survivors = range(AGENTS) if moment in ("never", "late") else range(1, AGENTS)
    told, swept = told_by(survivors, tmp_path, moment, way)
    for _ in range(3):  # on busy cores an agent may come after the others have left the sweep
        if (way, moment) == ("sweep", "never") and not all(swept):
            told, swept = told_by(survivors, tmp_path, moment, way)
    if moment in ("never", "late"):
        assert swept == [way == "sweep" and moment == "never"] * AGENTS
    for number in range(2, 8):
        outcomes = {agent: told[agent][number - 2] for agent in survivors}
        assert len({json.dumps(outcome[:3]) for outcome in outcomes.values()}) == 1
        counter, coordinator, members, _ = outcomes[1]
        gone = number > 3 or (number == 3 and moment == "first")
        gone |= (number, moment, way) == (3, "before", "tree")  # or others make it in its place
        lost = len(survivors) < AGENTS and gone
        assert (counter, coordinator) == (number, int(lost))
        assert members == list(range(int(lost), AGENTS))
        for agent in survivors:  # the marks of both its streams, merged
            full = [table_of(other, AGENTS, number) for other in range(AGENTS)]
            assert outcomes[agent][3] == merged_of(agent, full)


def told_by(survivors, directory, moment, way):
    """Run the agreements; what each survivor was told, and whether it swept to the end."""
    home = directory / str(len(list(directory.iterdir())))
    home.mkdir()
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [Path(sys.executable).parent / "mpirun", *as_root, *FLAGS.split(), str(AGENTS)]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.hosts.agreement_job", home, moment, way],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    told, swept = {}, []
    for agent in survivors:
        path = home / f"told-{agent}.json"
        assert path.exists(), done.stdout + done.stderr
        told[agent], whole = json.loads(path.read_text())
        swept.append(whole)
    return told, swept


def merged_of(agent, full):
    """What all ledgers together hold of one agent's streams."""
    from ftrt.agree.marks import merged

    mine = {key: entry for key, entry in merged(*full).items() if agent in key[1:]}
    return json.loads(json.dumps(shown(mine)))
