"""GPUs, and what the plane between them needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ftrt.doctor.check import Check, judged
from ftrt.transport.nccl.capabilities import environment_notes

_LIMIT_S = 60.0
_EXPECTED = "for --plane nccl only"

#: In a process of its own: a driver that hangs hangs that, and no CUDA context stays here.
_PROBE = """
import json
import cupy
from ftrt.transport.nccl.lib import Nccl
count = cupy.cuda.runtime.getDeviceCount()
names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
assert int(cupy.arange(4).sum()) == 6
reach = all(cupy.cuda.runtime.deviceCanAccessPeer(i, j)
            for i in range(count) for j in range(count) if i != j)
import numba_cuda
print(json.dumps({"names": names, "nccl": cupy.cuda.nccl.get_version(), "reach": reach}))
"""


def checks() -> list[Check]:
    """None is fine: the plane of the host needs none."""
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not devices:
        return [Check("GPUs", "ok", "none", _EXPECTED)]
    fix = "pip install 'ftrt[cuda12]'   # or cuda13, after the CUDA version of nvidia-smi"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        said = f"{len(devices)}, and CUDA says nothing within {_LIMIT_S:.0f} s"
        return [Check("GPUs", "warn", said, _EXPECTED, "nvidia-smi   # tells who holds them")]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [Check("GPUs", "warn", f"{len(devices)}, {last[:120]}", _EXPECTED, fix)]
    found = json.loads(done.stdout.splitlines()[-1])
    names = found["names"]
    said = f"{len(names)} × {names[0]}, NCCL {found['nccl']}"
    checks = [Check("GPUs", "ok", said, _EXPECTED)]
    if len(names) > 1:
        said = "each reaches each" if found["reach"] else "some pairs go through the host"
        fix = "nvidia-smi topo -m   # shows which"
        checks.append(judged("GPU peers", found["reach"], said, "direct access", fix))
    notes = environment_notes(os.environ)
    said = "; ".join(notes) or "none that harm"
    checks.append(judged("NCCL settings", not notes, said, "defaults", "env | grep NCCL_"))
    return checks
