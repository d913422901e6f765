"""Programs under plain mpirun, without ``ftrt run``: what works, and what is refused first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrt.errors import UsageError
from ftrt.launch.mpirun import find_mpirun
from ftrt.ledger.audit import audit
from ftrt.runtime import direct

ROOT = Path(__file__).resolve().parents[2]
STREAM = ROOT / "apps" / "stream.py"
ULFM = ["--with-ft", "ulfm"]


def start(folder, options, *arguments, **settings):
    """Plain mpirun in ``folder``; (status, output)."""
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [find_mpirun(), *as_root, "--oversubscribe", "--bind-to", "none", *options]
    done = subprocess.run(
        [*command, sys.executable, str(STREAM), "--messages", "200", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_a_death_is_healed_and_the_ledger_is_then_taken(tmp_path):
    kill = {"kind": "kill", "rank": 1, "when_kind": "messages", "when": 77, "spec": "kill:1@77msg"}
    settings = {"FTRT_LEDGER": "kept", "FTRT_SPARES": "1", "FTRT_FAULTS": json.dumps([kill])}
    status, output = start(tmp_path, [*ULFM, "-n", "3"], **settings)
    assert status == 0, output
    events = [json.loads(x) for x in (tmp_path / "kept/run/events.jsonl").read_text().splitlines()]
    assert [e["rank"] for e in events if e["event"] == "recovery"] == [1]
    found = audit(tmp_path / "kept")
    assert found["ok"] and found["sent"] == found["consumed"] == 200

    status, output = start(tmp_path, [*ULFM, "-n", "2"], FTRT_LEDGER="kept")
    assert status == 2
    assert output.count("ftrt:") == 1 and "holds the ledger of job" in output
    assert "Traceback" not in output


def test_without_ulfm_it_is_refused_before_anything_is_created(tmp_path):
    before = set(os.listdir("/dev/shm"))
    status, output = start(tmp_path, ["-n", "2"])
    assert status == 2
    assert output.count("ftrt:") == 1 and "add `--with-ft ulfm`" in output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("ftrt-")]


def test_the_end_without_a_spare_is_told_by_the_ranks(tmp_path):
    kill = {"kind": "kill", "rank": 1, "when_kind": "messages", "when": 20, "spec": "kill:1@20msg"}
    status, output = start(tmp_path, [*ULFM, "-n", "2"], FTRT_FAULTS=json.dumps([kill]))
    assert status == 3
    assert "rank 1 of 2 died and no spare is left" in output


def test_without_mpirun_it_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, str(STREAM)],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("FTRT_")},
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("ftrt: no mpirun started this process")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("spares", ["x", "-1", "1.5"])
def test_spares_that_are_no_number(spares):
    started = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_mpi_ft_enable": "1"}
    with pytest.raises(UsageError, match=f"FTRT_SPARES={spares}"):
        direct.check({**started, "FTRT_SPARES": spares})


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK"])
def test_a_start_without_ulfm_is_told_what_to_type(name):
    with pytest.raises(UsageError, match=r"no ULFM .*ftrt run -n N PROGRAM"):
        direct.check({name: "0"})
