"""Which NCCL is loaded, what it can do, and whether it fits the driver; calls nothing of CUDA's.

The launcher asks this before it starts anything, and each rank loads its library by it.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import mmap
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ftrt.errors import UsageError
from ftrt.transport.nccl.capabilities import Capabilities, probe

#: Without these a library carries no stream at all.
_NEEDED = (
    *("ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclCommGetAsyncError"),
    *("ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclCommAbort", "ncclCommDestroy"),
)
INSTALL = (
    "the nccl plane needs CuPy, numba-cuda and NCCL: type `pip install 'ftrt[cuda12]'` or "
    "`pip install 'ftrt[cuda13]'`, after the CUDA version that nvidia-smi shows"
)
_BUILD = re.compile(rb"NCCL version \d+\.\d+\.\d+[^+\0]{0,40}\+cuda(\d+)\.")


class Loaded(NamedTuple):
    """A library that can be used.

    Attributes
    ----------
    file : str
        Where it lies; the name that it was asked for by, if that cannot be found out.
    """

    library: Any
    file: str
    capabilities: Capabilities


def load(path: str | None = None) -> Loaded:
    """Load a libnccl or librccl and ask what it can do.

    Parameters
    ----------
    path : str, optional
        The library; by default that of ``FTRT_NCCL_PATH``, else the one that this process has
        loaded already (so that CuPy and ftrt use the same), else one that is installed.

    Raises
    ------
    UsageError
        There is none, or it does not load, or it is no NCCL.
    """
    named = path or os.environ.get("FTRT_NCCL_PATH") or None
    library = _named(named) if named else _first()
    lacking = [symbol for symbol in _NEEDED if not hasattr(library, symbol)]
    if lacking:
        raise UsageError(
            f"{library._name} is no NCCL that can be used, it has no {lacking[0]}: give another "
            "library in FTRT_NCCL_PATH, or none"
        )
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    file = _file_of(library)
    is_rccl = hasattr(library, "rcclGetVersion") or "rccl" in os.path.basename(file)
    kind = "rccl" if is_rccl else "nccl"
    return Loaded(library, file, probe(kind, version.value, lambda name: hasattr(library, name)))


def _named(path: str) -> Any:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise UsageError(
            f"FTRT_NCCL_PATH={path} does not load ({error}): give the path of a libnccl.so.2, or "
            "unset it"
        ) from error


def _first() -> Any:
    problem = ""
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            problem = f" ({error})"
    raise UsageError(f"no libnccl was found{problem}: {INSTALL}")


def _candidates() -> Iterator[str]:
    yield from (p for p in os.environ.get("LD_PRELOAD", "").split(":") if "ccl" in p)
    for folder in sys.path:
        yield from sorted(glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so.*")))
    yield from ("libnccl.so.2", "librccl.so.1")


def _file_of(library: Any) -> str:
    """The file that a loaded library was mapped from."""
    address = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value or 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, *_, name = line.split(maxsplit=5)
            low, _, high = span.partition("-")
            if int(low, 16) <= address < int(high, 16) and name.startswith("/"):
                return name.strip()
    return str(library._name)


def cuda_of(file: str) -> int | None:
    """Major version of CUDA that a library was built for, as its text of itself says; else None."""
    try:
        with (
            open(file, "rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            found = _BUILD.search(content)
            return int(found[1]) if found else None
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None


def cuda_of_cupy() -> int | None:
    """Major version of CUDA that the installed CuPy was built for; None if its name tells none."""
    for major in (13, 12, 11):
        try:
            importlib.metadata.version(f"cupy-cuda{major}x")
        except importlib.metadata.PackageNotFoundError:
            continue
        return major
    return None


def driver_version() -> int | None:
    """CUDA version that the driver supports, as it tells it (12040 is 12.4); None without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    return None if driver.cuDriverGetVersion(ctypes.byref(version)) else version.value


def missing_extra(error: ImportError) -> UsageError:
    """The error for a Python package that the plane needs and that is not there."""
    return UsageError(f"there is no module {error.name!r}: {INSTALL}")
