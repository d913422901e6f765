"""Jobs of class power: the machine loses its power between two attempts."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import ROOT, run_job

from ftrt.launch.mpirun import find_mpirun
from ftrt.ledger import durable
from ftrt.ledger.layout import unguard

PROGRAM = ROOT / "tests" / "ledger" / "killed_stream.py"
# Stands for mpirun, which begins when the machine has come back: see power/sitecustomize.py.
MPIRUN = """#!{python}
import os, sys, time
from pathlib import Path
attempt, deadline = os.environ.get("FTRT_ATTEMPT"), time.monotonic() + 30
back = Path(os.environ["POWER_SYNCED"], "back-" + str(attempt))
while attempt and "POWER_CUTS" in os.environ and not back.exists():
    if time.monotonic() > deadline:
        sys.exit("the machine did not come back")
    time.sleep(0.005)
os.execv("{mpirun}", ["{mpirun}", *sys.argv[1:]])
"""


def power_job(directory: Path, options: list, *arguments, cuts: bool = True, **env):
    """A stream of class power on a machine that tells what it syncs; losses show in its sums."""
    arguments = ["--effects", directory / "effects", *arguments]
    return power_run(directory, ["-n", 2, *options], PROGRAM, *arguments, cuts=cuts, **env)


def power_run(directory: Path, options: list, program, *arguments, cuts: bool = True, **env):
    """A job of class power on a machine that tells what it syncs."""
    for name in ("effects", "synced"):
        (directory / name).mkdir(exist_ok=True)
    support = ROOT / "tests" / "ledger"
    mpirun = directory / "mpirun"
    python, real = sys.executable, find_mpirun()
    mpirun.write_text(MPIRUN.format(python=python, mpirun=real))
    mpirun.chmod(0o755)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(support / "power"), str(ROOT)]),
        "POWER_SYNCED": str(directory / "synced"),
        "FTRT_SYNC_INTERVAL_S": "0.03",
        **({"POWER_CUTS": "1"} if cuts else {}),
        **env,
    }
    options = ["--stable", "power", "--mpirun", mpirun, *options]
    return run_job(directory, options, program, *arguments, env=environment)


def test_a_job_whose_launcher_lost_its_power_too_is_gone_on_with(tmp_path):
    program = ["--messages", 600, "--delay-us", 300, "--size", 8]
    failed = power_job(tmp_path, ["--fault", "kill:1@300msg"], *program)
    assert failed.status == 3 and failed.report["attempts"] == 1, failed.output
    ended = power_job(tmp_path, ["--resume"], *program)
    assert ended.status == 0 and ended.report["attempts"] == 2, ended.output
    audit = ended.report["audit"]
    assert audit["ok"] and audit["sent"] == audit["consumed"] == 600


@pytest.mark.parametrize(
    "how", [pytest.param(["--size", 8], marks=pytest.mark.long), ["--spool", "--size", 4096]]
)
def test_power_cuts_lose_nothing_and_repeat_nothing(tmp_path, how):
    faults = ["kill:1@300msg", "kill:0@400msg", "kill:1@350msg"]
    options = ["--restarts", len(faults)]
    for fault in faults:
        options += ["--fault", fault]
    ended = power_job(tmp_path, options, "--messages", 1500, "--delay-us", 300, *how)
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 4
    audit = ended.report["audit"]
    assert audit["ok"] and audit["sent"] == audit["consumed"] == 1500
    assert not [path for path in ended.ledger.iterdir() if "tmp-" in path.name]


@pytest.mark.parametrize("spares", [pytest.param(0, marks=pytest.mark.long), 1])
def test_what_one_receiver_durably_has_is_not_lost_for_another(tmp_path, spares):
    """With a spare an epoch is entered in between: its record makes durable, too."""
    program = ROOT / "tests" / "runtime" / "spool_to_two.py"
    options = ["-n", 3, "--spares", spares, "--restarts", 2]
    faults = ["kill:1@140msg", "kill:1@150msg", "kill:0@200msg"]
    for fault in faults[: 2 + spares]:
        options += ["--fault", fault]
    ended = power_run(tmp_path, options, program, tmp_path)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == 2 + spares
    audit = ended.report["audit"]
    assert audit["ok"] and audit["consumed"] == 800
    texts = re.findall(r"^text (\d) (\w+)$", ended.output, re.MULTILINE)
    assert sorted(rank for rank, _ in texts) == ["1", "2"]
    assert len({text for _, text in texts}) == 1, "they have not had the same messages"


def test_a_spare_takes_over_in_class_power(tmp_path):
    options = ["--spares", 2, "--fault", "kill:1@200msg", "--fault", "kill:0@400msg"]
    ended = power_job(tmp_path, options, "--messages", 600, cuts=False)
    assert ended.status == 0, ended.output
    assert ended.report["audit"]["consumed"] == 600
    assert len(ended.named("recovery")) == 2


def test_what_a_finished_rank_leaves_undone_is_made_durable_for_it(tmp_path):
    program = ROOT / "tests" / "runtime" / "left_behind.py"
    ended = power_run(tmp_path, ["-n", 2], program, tmp_path, "settled", cuts=False)
    assert ended.status == 0, ended.output
    mark = durable.read_mark(ended.ledger, 1, 0)
    assert [unguard(last) for _, _, head, last in mark["heads"] if head] == [12 + 1]
    segment = str(ended.ledger / "e000001-r0000-s000.h5")
    assert (tmp_path / "synced" / os.getxattr(segment, "user.synced").decode()).exists()


@pytest.mark.parametrize("where, restarts, status", [("agent", 0, 3), ("rank", 1, 0)])
def test_a_broken_disk_is_named_and_a_restart_goes_on(tmp_path, where, restarts, status):
    env = {"POWER_EIO": "e000001-r0001-s000.h5", "POWER_EIO_IN": where}
    arguments = ["--messages", 2000, "--delay-us", 300]
    ended = power_job(tmp_path, ["--restarts", restarts], *arguments, cuts=False, **env)
    assert ended.status == status, ended.output
    assert "Traceback" not in ended.output
    if where == "agent":
        assert "e000001-r0001-s000.h5: cannot be synced: Input/output error" in ended.output
    else:  # the rank says so, or the agent that finds its ledger marked
        assert re.search(
            r"attempt 1 failed \(rank 1[:,].*(cannot|could not) be synced", ended.output
        )
        assert ended.report["audit"]["consumed"] == 2000
