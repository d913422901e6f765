"""``python -m ftrt.warm``: compile every numba kernel once, into the cache that later runs load."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import ftrt
from ftrt.errors import UsageError

OPTIONAL = {"cupy", "numba_cuda", "nccl", "matplotlib", "gymnasium"}


def main() -> int:
    """Import every module of the package; kernels have explicit signatures and compile then."""
    start = time.monotonic()
    for module in pkgutil.walk_packages(ftrt.__path__, "ftrt."):
        if module.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(module.name)
        except (ModuleNotFoundError, UsageError) as error:
            missing = error.__cause__ if isinstance(error, UsageError) else error
            if not isinstance(missing, ImportError):
                raise
            if (missing.name or "").partition(".")[0] not in OPTIONAL:
                raise
    print(f"kernels are compiled ({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
