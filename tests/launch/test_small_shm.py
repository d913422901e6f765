"""Shared memory that is too small is told before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Runs the rest of its arguments where /dev/shm is another one, of 8 MiB, for them alone.
SMALL = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8m t /dev/shm && exec "$@"', "-"]


def in_small_shm(*command):
    try:
        probe = subprocess.run([*SMALL, "true"], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("there is no unshare command")
    if probe.returncode:
        pytest.skip(f"no mount namespace may be made here: {probe.stderr.decode().strip()}")
    return subprocess.run(
        [*SMALL, *map(str, command)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def test_it_is_refused_with_what_to_type(tmp_path):
    ledger = tmp_path / "ledger"
    options = ["run", "-n", 2, "--spares", 1, "--ledger", ledger, "apps/stream.py"]
    ended = in_small_shm(sys.executable, "-m", "ftrt.cli", *options)
    assert ended.returncode == 2, ended.stderr
    assert "/dev/shm has 8 MiB left, 3 processes need 52 MiB" in ended.stderr
    assert "remount,size=52m" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert not ledger.exists()
