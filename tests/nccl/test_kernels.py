"""The kernels in numba's simulator, in a process of its own: the switch is read at import."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_kernels_in_the_simulator():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        + ["-W", "ignore::RuntimeWarning", str(HERE / "simulated_kernels.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "NUMBA_ENABLE_CUDASIM": "1",
            "PYTHONPATH": str(HERE.parents[1]),
        },
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
