"""Joining a job that plain ``mpirun --with-ft ulfm`` started, without ``ftrt run``.

The first process makes the job and tells the others through MPI; from then on their environment
reads as if the launcher had written it. There is one attempt: whoever wants restarts, or the
verdict and the audit at the end, types ``ftrt run``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ftrt import mpi
from ftrt.errors import FtrtError, LedgerError, UsageError
from ftrt.runtime.config import Config

_START = "type `ftrt run -n N PROGRAM`, or `mpirun --with-ft ulfm -n N python PROGRAM`"
_EXIT_USAGE = 2


def prepare() -> None:
    """Make the environment complete where no launcher did; called before anything else.

    Raises
    ------
    UsageError
        There is no mpirun, or it was started without ULFM, or FTRT_SPARES leaves no rank. Nothing
        was created.
    LedgerError
        The ledger's directory cannot be used.
    """
    if "FTRT_JOB" in os.environ:
        return
    try:
        check(os.environ)
        os.environ.setdefault("OMPI_MCA_coll", "^han,cuda")  # they crash under revoke
        os.environ.setdefault("OMPI_MCA_pml", "ob1")  # the only one fully adapted to ULFM
        os.environ.update(_agreed(mpi.World()))
    except FtrtError as error:
        _speak_once(error)
        raise


def tell_host() -> None:
    """Have this process's environment say on which of the job's hosts it is."""
    hosts = [name for name in os.environ.get("FTRT_HOSTS", "").split(",") if name]
    process = mpi.world_rank_of_environment(os.environ)
    if len(hosts) > 1 and process is not None:
        os.environ["FTRT_HOST"] = str(process % len(hosts))


def check(environment: Mapping[str, str]) -> None:
    """Refuse a start that cannot work, from the environment alone."""
    if mpi.world_rank_of_environment(environment) is None:
        raise UsageError(f"no mpirun started this process: {_START}")
    if "OMPI_COMM_WORLD_RANK" not in environment:
        raise UsageError(
            "what started this process has no ULFM (MPICH's mpirun, or srun), so that a death ends "
            "its job: type `ftrt run -n N PROGRAM`, which begins again from the ledger then"
        )
    if not mpi.ulfm_is_on(environment):
        raise UsageError(
            "this mpirun was started without ULFM, so the first death would end the job: "
            "add `--with-ft ulfm` behind mpirun, or type `ftrt run -n N PROGRAM`"
        )
    spares = environment.get("FTRT_SPARES", "0")
    if not spares.isdecimal():
        raise UsageError(f"FTRT_SPARES={spares}: it is the number of spare processes, 0 or more")


def _agreed(world: mpi.World) -> dict[str, str]:
    """Settings of the job, made by the first process, or its refusal raised everywhere."""
    settings: dict[str, str] = {}
    refusal: FtrtError | None = None
    if world.rank == 0:
        try:
            settings = _create(world.size)
        except FtrtError as error:
            refusal = error
    lock = settings.pop("FTRT_LOCK_FD", None)
    refusal, settings = world.comm.bcast((refusal, settings))
    if refusal is not None:
        raise refusal
    if lock is not None:  # a number that means something in this process alone
        settings["FTRT_LOCK_FD"] = lock
    return settings


def _create(processes: int) -> dict[str, str]:
    from ftrt.ledger.record import check_directory, create_job, lock_directory

    spares = int(os.environ.get("FTRT_SPARES", "0"))
    if spares >= processes:
        raise UsageError(
            f"FTRT_SPARES={spares} leaves no rank of the {processes} processes that mpirun "
            f"started: type mpirun -n {spares + 2} or more"
        )
    job = str(uuid.uuid4())
    chosen = os.environ.get("FTRT_LEDGER") or f"ftrt-{time.strftime('%Y%m%d-%H%M%S')}-{job[:8]}"
    directory = Path(chosen).resolve()
    settings = {
        "FTRT_LAUNCHER": "mpirun",
        "FTRT_JOB": job,
        "FTRT_LEDGER": str(directory),
        "FTRT_ATTEMPT": "1",
        "FTRT_RANKS": str(processes - spares),
        "FTRT_SPARES": str(spares),
    }
    if os.environ.get("FTRT_PLANE") == "nccl":
        from ftrt.transport.nccl.placement import count_gpus

        settings["FTRT_GPUS"] = str(count_gpus(processes - spares))
    Config.from_environment({**os.environ, **settings})  # what is wrong is told before we create
    check_directory(directory, job, stable=os.environ.get("FTRT_STABLE", "process"))
    handle = lock_directory(directory)
    if not create_job(directory, _facts(job, processes - spares, spares)):
        raise LedgerError(f"{directory}: another job began here meanwhile; choose another")
    # Held by the agent for as long as the job runs, whichever of its processes die.
    settings["FTRT_LOCK_FD"] = str(os.dup(handle.fileno()))
    handle.close()
    print(
        f"ftrt: job {job[:8]}, ranks {processes - spares}, spares {spares}\n"
        f"ftrt: ledger {directory}",
        file=sys.stderr,
        flush=True,
    )
    return settings


def _facts(job: str, ranks: int, spares: int) -> dict[str, object]:
    return {
        "job": job,
        "ranks": ranks,
        "spares": spares,
        "stable": os.environ.get("FTRT_STABLE", "process"),
        "seed": int(os.environ.get("FTRT_SEED", "0") or 0),
        "program": os.path.abspath(sys.argv[0]),
        "args": sys.argv[1:],
    }


def _speak_once(refusal: FtrtError) -> None:
    """If nobody catches ``refusal``, print its sentence once for all processes, status 2."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None | NoReturn:
        if error is not refusal:
            return before(kind, error, trace)
        if mpi.world_rank_of_environment(os.environ) in (0, None):
            print(f"ftrt: {error}", file=sys.stderr, flush=True)
        else:  # mpirun ends everybody once one has left: the one that speaks goes first
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(1.0)
        mpi.leave(_EXIT_USAGE)

    sys.excepthook = hook
