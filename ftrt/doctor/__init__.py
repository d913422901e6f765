"""``ftrt doctor``: tries, before a job, what a job needs; each check is a real probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ftrt.doctor.check import Check

__all__ = ["Check", "run_checks"]


def run_checks(
    ranks: int = 2, ledger: Path | None = None, mpirun: str | None = None
) -> list[Check]:
    """Run all checks, one after the other.

    Parameters
    ----------
    ranks : int
        Ranks and spares that a job is to have on this host.
    ledger : Path, optional
        Where its ledger is to be; the folder that one is in.
    mpirun : str, optional
        The mpirun to use; that of ``ftrt run`` by default.
    """
    found: list[Check] = []
    for name, probe in _probes(ranks, ledger or Path(), mpirun):
        try:
            found += probe()
        except Exception as error:  # a check that breaks has found something, too
            said = f"{type(error).__name__}: {error}"
            found.append(Check(name, "fail", said, "a check that ends", "report this line"))
    return found


def _probes(
    ranks: int, ledger: Path, mpirun: str | None
) -> Iterator[tuple[str, Callable[[], list[Check]]]]:
    from ftrt.doctor import gpu, host, kernel, mpi, python, storage

    yield "MPI", partial(mpi.checks, mpirun)
    yield "shared memory", partial(host.shared_memory, ranks)
    yield "left behind", host.left_behind
    yield "cores", partial(host.cores, ranks)
    yield "limits", partial(host.limits, ranks)
    yield "temporary files", host.temporary_files
    yield "kernel", kernel.checks
    yield "HDF5", python.hdf5
    yield "numba cache", python.numba_cache
    yield "BLAS threads", python.blas
    yield "ledger", partial(storage.checks, ledger)
    yield "GPUs", gpu.checks
