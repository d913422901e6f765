"""What ``tests/nccl`` asks of a channel and of a job, of the real library and a real GPU.

Two processes each time: a communicator's two ends block each other inside one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from test_deaths import stream_job

PLANE = ["--plane", "nccl"]


@pytest.fixture(autouse=True)
def real_gpus(monkeypatch):
    monkeypatch.delenv("FTRT_NCCL_LIBRARY", raising=False)


@pytest.mark.parametrize("path", ["graph", "eager", "revoke"])
@pytest.mark.parametrize(
    "faults, spares",
    [
        ([], 0),
        (["kill:1@1000msg", "kill:0@2500msg"], 2),
        (["abort:0@600msg", "corrupt:1@900msg"], 0),
        (["stop:1@600msg+300ms", "segv:1@900msg"], 1),
    ],
)
def test_nothing_is_lost_and_nothing_doubled(tmp_path, monkeypatch, path, faults, spares):
    monkeypatch.setenv("FTRT_NCCL_MODE", path)
    arguments = ["--batch", 16, "--size", 65536 if path == "graph" else 4096]
    ended = stream_job(
        tmp_path, faults, spares=spares, messages=4000, options=PLANE, arguments=arguments
    )
    deaths = [fault for fault in faults if fault[:4] in ("kill", "segv")]
    assert len(ended.named("recovery")) == len(deaths)


def test_what_a_gpu_holds_is_given_back(tmp_path):
    """Each abort makes a channel anew: memory, descriptors and threads stay where they are."""
    ended = stream_job(
        tmp_path,
        [f"abort:0@{n * 100}msg" for n in range(1, 41)],
        spares=0,
        messages=6000,
        options=PLANE,
        arguments=["--batch", 16, "--size", 4096],
    )
    held = [event["held"] for event in ended.named("aborted")]
    assert len(held) >= 30, ended.output
    early, late = held[9], held[-1]
    assert late["descriptors"] <= early["descriptors"] + 40, (early, late)
    assert late["threads"] <= early["threads"] + 20, (early, late)
    assert late["left_behind"] == 0
    assert late["gpu_bytes"] <= early["gpu_bytes"] + (256 << 20), (early, late)
