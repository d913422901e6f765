"""Real deaths with shared memory switched off: streams go over MPI, and MPI over TCP."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_deaths import stream_job


@pytest.fixture(autouse=True)
def shared_memory_off(monkeypatch):
    monkeypatch.setenv("FTRT_SHM", "0")


def kills(rank: int, first: int, last: int, step: int) -> list[str]:
    return [f"kill:{rank}@{at}msg" for at in range(first, last, step)]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_end_dies_again_and_again(tmp_path, rank):
    ended = stream_job(tmp_path, kills(rank, 3, 160, 31), spares=6)
    assert len(ended.named("recovery")) == 6


def test_both_ends_die(tmp_path):
    faults = ["kill:0@60msg", "kill:1@60msg", "exit:1@120msg", "kill:0@150msg"]
    stream_job(tmp_path, faults, spares=4)


def test_a_death_inside_the_recovery(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@60msg", "kill:0@recovery"], spares=3)
    assert len(ended.named("died")) >= 2


def test_restart_from_the_ledger(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@90msg"], spares=0, options=["--restarts", 1])
    assert ended.report["attempts"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_batched_stream_survives(tmp_path, rank):
    batches = ["--batch", 32, "--size", 16]
    stream_job(tmp_path, [f"kill:{rank}@700msg"], messages=2000, arguments=batches)


def test_large_messages_survive_their_receiver(tmp_path):
    """Too large to be sent before they are matched: the sends in flight fail with the receiver."""
    stream_job(tmp_path, ["kill:1@50msg"], messages=100, arguments=["--size", 400_000])


def test_a_damaged_slot_is_healed(tmp_path):
    ended = stream_job(tmp_path, ["corrupt:1@50msg"])
    assert ended.named("damaged") and ended.named("healed")


def test_an_aborted_transport_loses_nothing(tmp_path):
    ended = stream_job(tmp_path, ["abort:0@50msg", "abort:0@120msg"])
    assert len(ended.named("aborted")) == 2


def test_a_pause_is_forgiven(tmp_path):
    ended = stream_job(tmp_path, ["stop:1@50msg+400ms"])
    assert ended.named("suspected") and not ended.named("recovery")


def test_three_ranks_and_rings_are_not_used(tmp_path):
    """Two senders into one receiver, which dies, and one of the senders dies as well."""
    from runtime_job import STREAM, run_job

    options = ["-n", 3, "--spares", 2, "--fault", "kill:0@90msg", "--fault", "kill:2@70msg"]
    ended = run_job(tmp_path, options, STREAM, "--messages", 150)
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert audit["ok"] and audit["consumed"] == 300
