"""Real deaths in real jobs; effects are counted by the ledger and by an oracle beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ftrt.host.timing import PHASES
from ftrt.oracle import check_effects

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import STREAM, run_job


def audited(ended) -> dict:
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert (audit["losses"], audit["duplicates"], audit["open"]) == (0, 0, 0)
    assert audit["ok"]
    return audit


def stream_job(directory: Path, faults: list[str], spares: int = 1, messages: int = 200, **more):
    """Rank 0 streams to rank 1; the oracle and the closed form must both be content."""
    effects = directory / "effects"
    effects.mkdir()
    options = ["-n", 2, "--spares", spares, *more.get("options", [])]
    for fault in faults:
        options += ["--fault", fault]
    arguments = ["--messages", messages, "--effects", effects, *more.get("arguments", [])]
    limit_s = more.get("limit_s", 60.0)
    ended = run_job(directory, options, STREAM, *arguments, limit_s=limit_s)
    audit = audited(ended)
    assert audit["sent"] == audit["consumed"] == messages
    oracle = check_effects(effects, {(1, "numbers", 0): messages})
    assert not oracle["losses"] and not oracle["duplicates"], oracle
    return ended


@pytest.mark.parametrize("kind", ["kill", "segv", "exit"])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_end_is_healed_by_a_spare(tmp_path, kind, rank):
    ended = stream_job(tmp_path, [f"{kind}:{rank}@77msg"])
    (recovery,) = ended.named("recovery")
    assert recovery["rank"] == rank
    died, phases = ended.named("died")[0], recovery["phases_ms"]
    assert list(phases) == [name for name in PHASES if rank or name != "restore"]
    assert all(0 <= ms < 3000 for ms in phases.values())
    assert recovery["t"] >= died["t"] + sum(phases.values()) / 1e3 - phases["detect"] / 1e3 - 1e-3
    (told,) = ended.report["recoveries"]
    assert told["phases_ms"] == phases
    assert recovery["layer"] == "mutex" and 0 <= recovery["silent_ms"] < 300  # less than a suspect


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_death_at_every_message_of_a_stream(tmp_path, rank):
    """64 messages, a death after each: eight deaths in each of eight jobs."""
    digests = set()
    for first in range(1, 9):
        directory = tmp_path / str(first)
        directory.mkdir()
        faults = [f"kill:{rank}@{at}msg" for at in range(first, 65, 8)]
        ended = stream_job(directory, faults, spares=8, messages=64)
        assert len(ended.named("recovery")) == 8
        digests.add(ended.report["digest"])
    assert len(digests) == 1


def test_both_ends_die(tmp_path):
    stream_job(tmp_path, ["kill:0@60msg", "kill:1@60msg", "kill:1@120msg"], spares=3)


def test_a_death_inside_the_recovery(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@60msg", "kill:0@recovery"], spares=3)
    assert len(ended.named("died")) >= 2


def test_restart_from_the_ledger(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@90msg"], spares=0, options=["--restarts", 1])
    assert ended.report["attempts"] == 2


def test_a_batched_stream_survives_its_receiver(tmp_path):
    stream_job(tmp_path, ["kill:1@700msg"], messages=2000, arguments=["--batch", 32, "--size", 16])


def test_a_damaged_slot_is_healed(tmp_path):
    ended = stream_job(tmp_path, ["corrupt:1@50msg"])
    assert ended.named("damaged") and ended.named("healed")


def test_an_aborted_transport_loses_nothing(tmp_path):
    ended = stream_job(tmp_path, ["abort:0@50msg"])
    assert ended.named("aborted")


def test_a_pause_is_suspected_and_forgiven(tmp_path):
    slowly = ["--delay-us", 4000]  # the job must not end before the beat is seen again
    ended = stream_job(tmp_path, ["stop:1@50msg+800ms"], arguments=slowly)
    assert ended.named("suspected") and ended.named("cleared")
    assert not ended.named("recovery")


def test_what_only_the_rank_can_inflict_comes_at_a_time_and_in_a_recovery_too(tmp_path):
    faults = ["corrupt:1@200ms", "abort:0@300ms", "hang:1@500ms", "exit:0@recovery"]
    options = ["--stall-timeout-s", 1]
    ended = stream_job(tmp_path, faults, spares=2, options=options, arguments=["--delay-us", 5000])
    # In no order: on a busy machine the streams may open later than the first of them is due.
    assert {e["kind"] for e in ended.named("fault")} == {"corrupt", "abort", "hang", "exit"}
    assert ended.named("damaged") and ended.named("aborted")
    died = {entry["rank"]: entry["by"] for entry in ended.named("died")}
    assert died == {1: "no progress for 1 s", 0: "mutex"}


def test_a_hang_is_replaced(tmp_path):
    ended = stream_job(tmp_path, ["hang:1@50msg"], options=["--stall-timeout-s", 1])
    (recovery,) = ended.named("recovery")
    assert "no progress" in recovery["by"]
    assert recovery["layer"] == "progress"


def test_spares_depleted_is_a_named_end(tmp_path):
    ended = run_job(tmp_path, ["-n", 2, "--fault", "kill:1@20msg"], STREAM, "--messages", 100)
    assert ended.status == 3
    assert "no spare is left" in ended.output
    assert "--restarts" in ended.output


def test_an_exception_is_shown_once_and_not_restarted(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text(
        "import ftrt\nwith ftrt.init() as rt:\n    raise ValueError('my own fault')\n"
    )
    ended = run_job(tmp_path, ["-n", 2, "--spares", 1, "--restarts", 2], program)
    assert ended.status == 1
    assert ended.output.count("Traceback (most recent call last)") == 1
    assert "my own fault" in ended.output


def test_nothing_is_left_in_shared_memory(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@20msg"])
    job = ended.report["job"]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"ftrt-{job[:8]}")]
