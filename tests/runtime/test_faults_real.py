"""Faults of the whole SPEC in real jobs: at a message, at a time, and inside a recovery."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import STREAM, run_job
from test_deaths import stream_job

SLOW = ["--delay-us", 4000]


def test_a_link_that_is_held_delays_and_loses_nothing(tmp_path):
    ended = stream_job(tmp_path, ["link:0-1@50msg+600ms", "link:1-0@300ms+500ms"], arguments=SLOW)
    assert len(ended.named("fault")) == 2
    assert not ended.named("recovery")


def test_a_frozen_rank_is_replaced(tmp_path):
    ended = stream_job(tmp_path, ["freeze:1@50msg"], options=["--evict-timeout-s", 0.5])
    (recovery,) = ended.named("recovery")
    assert "no heartbeat" in recovery["by"]
    assert recovery["layer"] == "heartbeat" and recovery["silent_ms"] > 500


def test_a_throttled_rank_is_not_replaced(tmp_path):
    faults = ["throttle:1@30msg+500ms", "throttle:0@300ms+500ms"]
    ended = stream_job(tmp_path, faults, arguments=SLOW, options=["--evict-timeout-s", 0.6])
    assert len(ended.named("fault")) == 2
    assert not ended.named("recovery")


def test_a_sync_that_fails_is_restarted_from_what_was_durable(tmp_path):
    """The effects between the durable mark and the failure happen again: the sums are right."""
    options = ["-n", 2, "--spares", 1, "--restarts", 1, "--stable", "power"]
    options += ["--fault", "eio:1@100msg"]
    ended = run_job(tmp_path, options, STREAM, "--messages", 300, *SLOW)
    assert ended.status == 0, ended.output
    assert ended.report["attempts"] == 2
    assert ended.report["audit"]["ok"]


@pytest.mark.parametrize("when", ["300ms", "recovery"])
def test_faults_that_only_the_rank_can_inflict(tmp_path, when):
    """Asked for by the agent: at a time, and inside a recovery that another death began."""
    faults = [f"corrupt:1@{when}", f"abort:0@{when}", "exit:1@600ms", "hang:1@900ms"]
    if when == "recovery":
        faults.append("kill:0@30msg")
    ended = stream_job(
        tmp_path, faults, spares=4, arguments=SLOW, options=["--stall-timeout-s", 1], messages=400
    )
    assert len(ended.named("fault")) == len(faults)
    assert ended.named("recovery")[-1]["by"].startswith("no progress")
