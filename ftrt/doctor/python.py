"""What the Python packages need: HDF5, numba's cache, BLAS."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ftrt.doctor.check import Check, judged


def hdf5() -> list[Check]:
    """Write a dataset through a map, and read it with HDF5, as the ledger does."""
    expected = "a dataset written through a map is read by HDF5"
    fix = "pip install --force-reinstall h5py"
    try:
        import h5py
        import numpy as np

        with tempfile.TemporaryDirectory(prefix="ftrt-doctor.") as directory:
            path = Path(directory) / "probe.h5"
            with h5py.File(path, "w", libver=("earliest", "v110")) as file:
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple((64,))
                dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U64LE, space, plist)
                offset = dataset.get_offset()
            np.memmap(path, "<u8", "r+", offset, (64,))[:] = np.arange(64)
            with h5py.File(path, "r") as file:
                good = bool((file["x"][:] == np.arange(64)).all())
        said = f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.__version__}"
        return [judged("HDF5", good, said, expected, fix, bad="fail")]
    except (ImportError, OSError, ValueError, TypeError) as error:
        return [Check("HDF5", "fail", f"{type(error).__name__}: {error}", expected, fix)]


def numba_cache() -> list[Check]:
    """Where compiled kernels go; without it each process compiles them at each start."""
    import ftrt

    named = os.environ.get("NUMBA_CACHE_DIR")
    package = Path(ftrt.__file__).parent
    directory = Path(named) if named else package / "transport" / "__pycache__"
    place = directory
    while not place.exists():
        place = place.parent
    writable = os.access(place, os.W_OK)
    compiled = any(directory.rglob("*.nbc"))
    said = f"{directory}: {'writable' if writable else 'read-only'}"
    said += "" if compiled else ", empty"
    fix = "export NUMBA_CACHE_DIR=$HOME/.cache/numba   # then python -m ftrt.warm"
    if writable and not compiled:
        fix = "python -m ftrt.warm   # else the first job takes half a minute to begin"
    return [judged("numba cache", compiled, said, "writable, kernels compiled", fix)]


def blas() -> list[Check]:
    """Several threads in each rank crowd the cores, and change the last bits of sums."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    told = {name: os.environ[name] for name in names if name in os.environ}
    many = [name for name, value in told.items() if value != "1"]
    said = ", ".join(f"{name}={value}" for name, value in told.items()) or "not set"
    return [
        judged(
            "BLAS threads",
            not many,
            f"{said}; ftrt run gives ranks 1",
            "1 a rank (plain mpirun takes what is set)",
            f"unset {' '.join(many)}",
        )
    ]
