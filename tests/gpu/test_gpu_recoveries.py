"""What a recovery takes on a GPU it gives back: after 200 of them all is where it was after 10."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from test_deaths import stream_job

_APART = 60  # messages between two faults
# Bounds of what comes and goes with the pair that is being made at the moment of the look.
_SLACK = {"descriptors": 40, "threads": 20, "shm": 12, "gpu_bytes": 256 << 20}


@pytest.fixture(autouse=True)
def real_gpus(monkeypatch):
    monkeypatch.delenv("FTRT_NCCL_LIBRARY", raising=False)


@pytest.mark.timeout(130)
@pytest.mark.parametrize("recoveries", [200])
@pytest.mark.parametrize("path", ["eager"])
def test_what_is_held_stays_what_it_was(tmp_path, monkeypatch, path, recoveries):
    """Each fault ends a communicator; the stream goes on over a standby, and one is made anew."""
    monkeypatch.setenv("FTRT_NCCL_MODE", path)
    faults = [f"abort:0@{n * _APART}msg" for n in range(1, recoveries + 1)]
    ended = stream_job(
        tmp_path,
        faults,
        spares=0,
        messages=(recoveries + 10) * _APART,
        options=["--plane", "nccl"],
        arguments=["--batch", 16, "--size", 4096],
        limit_s=120,
    )
    held = [event["held"] for event in ended.named("aborted")]
    # A fault that falls due while the one before it is still being healed is one with it.
    print(f"{len(held)} recoveries; after 10: {held[9]}; after the last: {held[-1]}")
    assert len(held) >= recoveries * 0.9, f"{len(held)} of {recoveries} faults tripped"
    early, late = held[9], held[-1]
    for name, slack in _SLACK.items():
        # The least of the last ten: ends that are under way pass, a leak does not.
        least = min(one[name] for one in held[-10:])
        assert least <= early[name] + slack, (name, early, late)
    assert late["left_behind"] == late["kept_bytes"] == 0, late
