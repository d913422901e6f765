"""Real deaths of real processes over the plane between GPUs; the library and the GPUs are fakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from runtime_job import run_job
from test_deaths import audited, stream_job

from ftrt.oracle import check_effects

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


def test_a_commit_of_the_host_is_final_whatever_the_gpu_still_has_queued(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    program = Path(__file__).with_name("queued_program.py")
    ended = run_job(tmp_path, ["-n", 2, "--spares", 1, *PLANE], program, tmp_path)
    audit = audited(ended)
    assert audit["sent"] == audit["consumed"] == 60
    assert (tmp_path / "busy").read_text() == "True"
    assert (tmp_path / "role").read_text() == "RECOVERED"
    oracle = check_effects(tmp_path / "effects", {(1, "numbers", 0): 60})
    assert not oracle["losses"] and not oracle["duplicates"], oracle
    assert "multicast is off and stays off" in ended.output


def test_a_library_without_revoke_and_grow_does_what_it_can_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FTRT_FAKE_WITHOUT", "revoke,shrink,grow,mem_alloc")
    ended = stream_job(tmp_path, ["abort:0@60msg", "kill:1@120msg"], messages=200, options=PLANE)
    for name in ("revoke", "shrink", "grow", "mem_alloc"):
        assert f"{name}: " in ended.output
