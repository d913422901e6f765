"""What set-up compiles, it compiles with the extras that are there."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftrt.warm import OPTIONAL

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from ftrt.warm import main
sys.exit(main())
"""


@pytest.mark.parametrize("missing", [["matplotlib"], sorted(OPTIONAL)])
def test_an_extra_that_is_not_installed_is_passed_over(missing):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *missing],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernels are compiled")
