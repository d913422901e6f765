"""Real deaths of real processes over the plane between GPUs; the library and the GPUs are fakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from test_deaths import stream_job

PLANE = ["--plane", "nccl"]


@pytest.fixture(autouse=True)
def fake_gpus(monkeypatch):
    monkeypatch.setenv("FTRT_NCCL_LIBRARY", "fake")
    monkeypatch.setenv("FTRT_FAKE_GPUS", "2")


@pytest.mark.parametrize(
    "faults, spares, batch",
    [
        (["kill:1@77msg", "kill:0@150msg"], 2, 1),
        (["kill:1@200msg", "kill:0@500msg"], 2, 16),
        (["abort:0@60msg", "corrupt:1@90msg"], 0, 1),
        (["stop:1@100msg+300ms", "segv:1@150msg"], 1, 1),
    ],
)
def test_nothing_is_lost_and_nothing_doubled(tmp_path, faults, spares, batch):
    messages = 300 if batch == 1 else 1000
    arguments = ["--batch", batch, "--size", 512]
    ended = stream_job(
        tmp_path, faults, spares=spares, messages=messages, options=PLANE, arguments=arguments
    )
    deaths = [fault for fault in faults if fault[:4] in ("kill", "segv")]
    assert len(ended.named("recovery")) == len(deaths)


def test_a_gpu_that_fails_makes_its_process_a_failed_one(tmp_path):
    faults = ["gpu:1@100msg", "gpu:0@150msg"]
    ended = stream_job(tmp_path, faults, spares=2, messages=300, options=PLANE)
    assert len(ended.named("recovery")) == 2
    assert {event["rank"] for event in ended.named("gpu lost")} == {0, 1}


@pytest.mark.long
def test_a_death_that_no_spare_covers_goes_on_after_a_restart(tmp_path):
    options = [*PLANE, "--restarts", 1]
    ended = stream_job(tmp_path, ["kill:0@100msg"], messages=200, options=options)
    assert ended.report["attempts"] == 2
    assert "share GPUs" in ended.output
