"""A Python beside this one with MPICH for its MPI, made from the wheel where there is none.

Both wheels install ``bin/mpirun``, so it has a folder of its own and reads all other packages from
where they are.
"""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "mpich==5.0.*"
_FOLDER = ROOT / "build" / f"mpich-{sys.version_info[0]}.{sys.version_info[1]}"
_PIP_LIMIT_S = 90.0


def python_with_mpich() -> str:
    """Path of the interpreter; skips the test where the wheel cannot be had."""
    python = _FOLDER / "bin" / "python"
    if not (_FOLDER / "bin" / "mpirun").exists():
        _make(python)
    return str(python)


def _make(python: Path) -> None:
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", _FOLDER], check=True)
        _read_others_from_here()
        done = subprocess.run(
            [*install, "--disable-pip-version-check", "--no-deps", WHEEL],
            capture_output=True,
            text=True,
            timeout=_PIP_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{WHEEL} cannot be installed: {error}")
    if done.returncode:
        pytest.skip(f"{WHEEL} cannot be installed: {done.stderr.strip().splitlines()[-1]}")


def _read_others_from_here() -> None:
    folders = {str(ROOT), str(Path(numpy.__file__).parents[1]), *site.getsitepackages()}
    (own,) = _FOLDER.glob("lib/python*/site-packages")
    (own / "others.pth").write_text("\n".join(sorted(folders)) + "\n")
