"""The one module that talks to MPI communicators (mpi4py).

MPI starts the processes, numbers them, and carries the application's own collectives on
``rt.comm``. What ftrt decides it decides beside MPI (see ``ftrt.host``): after a death nothing here
is waited for without a deadline, and no error class is trusted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from ftrt.errors import UsageError


class World:
    """``MPI_COMM_WORLD`` of this attempt, errors returned instead of fatal."""

    def __init__(self):
        import mpi4py

        mpi4py.rc.finalize = False  # MPI_Finalize hangs after a failure: processes leave without it
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self.comm.rank
        self.size = self.comm.size

    def processes_on_this_host(self) -> int:
        """How many processes of the job share memory with this one."""
        local = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        size = local.size
        local.Free()
        return size

    def member_comm(self, processes: list[int], epoch: int):
        """Communicator of ``processes`` (world ranks, in logical order); collective over them.

        ``MPI_Comm_create_group`` involves only its members, so it works beside dead outsiders the
        first time; where it does not any more, the world is shrunk and split (ULFM).
        """
        group = self.comm.Get_group().Incl(processes)
        try:
            comm = self.comm.Create_group(group, tag=epoch)
        except self._mpi.Exception:
            survivors = self._mpi.Intracomm(self.comm.Shrink())
            comm = survivors.Create_group(
                self._mpi.Group.Incl(self.comm.Get_group(), processes), tag=epoch
            )
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        return comm


def world_rank_of_environment(environment: Mapping[str, str] = os.environ) -> int | None:
    """Rank in the world before MPI is initialised, None where the launcher does not tell."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        value = environment.get(name)
        if value is not None and value.isdigit():
            return int(value)
    return None


def ulfm_is_on(environment: Mapping[str, str]) -> bool:
    """True in a process that ``mpirun --with-ft ulfm`` of Open MPI 5 or later started."""
    return environment.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "enabled")


def connect(expected: int) -> World:
    """Initialise MPI and check that it is the world the launcher meant."""
    world = World()
    if world.size != expected:
        raise UsageError(
            f"MPI started {world.size} processes, {expected} were expected: "
            "start the program with `ftrt run`, whose mpirun belongs to the mpi4py of "
            f"{sys.executable}"
        )
    return world


def leave(status: int) -> NoReturn:
    """End this process without ``MPI_Finalize``, everything printed."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more: no reason to stay
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
