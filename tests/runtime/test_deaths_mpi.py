"""Real deaths with shared memory switched off: streams go over MPI, and MPI over TCP."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job
from test_deaths import stream_job


@pytest.fixture(autouse=True)
def shared_memory_off(monkeypatch):
    monkeypatch.setenv("FTRT_SHM", "0")


def kills(rank: int, first: int, last: int, step: int) -> list[str]:
    return [f"kill:{rank}@{at}msg" for at in range(first, last, step)]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_end_dies_again_and_again(tmp_path, rank):
    ended = stream_job(tmp_path, kills(rank, 3, 160, 60), spares=3)
    assert len(ended.named("recovery")) == 3


def test_both_ends_die_also_inside_a_recovery(tmp_path):
    faults = ["kill:1@60msg", "kill:0@recovery", "exit:1@120msg", "kill:0@150msg"]
    ended = stream_job(tmp_path, faults, spares=4)
    assert len(ended.named("died")) >= 3


@pytest.mark.long
def test_restart_from_the_ledger(tmp_path):
    ended = stream_job(tmp_path, ["kill:1@90msg"], spares=0, options=["--restarts", 1])
    assert ended.report["attempts"] == 2


def test_a_batched_stream_survives_both_ends(tmp_path):
    batches = ["--batch", 32, "--size", 16]
    faults = ["kill:1@700msg", "kill:0@1300msg"]
    stream_job(tmp_path, faults, spares=2, messages=2000, arguments=batches)


def test_large_messages_survive_their_receiver(tmp_path):
    """Too large to be sent before they are matched: the sends in flight fail with the receiver."""
    stream_job(tmp_path, ["kill:1@50msg"], messages=100, arguments=["--size", 400_000])


def test_damage_abort_and_a_pause(tmp_path):
    faults = ["abort:0@30msg", "abort:0@50msg", "corrupt:1@120msg", "stop:1@160msg+400ms"]
    ended = stream_job(tmp_path, faults)
    assert ended.named("damaged") and ended.named("healed")
    assert len(ended.named("aborted")) == 2
    assert ended.named("suspected") and not ended.named("recovery")


PROGRAM = """
import numpy as np

import ftrt

TOTAL = 150
with ftrt.init() as rt:
    assert not list(rt.job.directory.glob("ring-*"))
    if rt.rank == 1:
        total = (rt.restore() or {"total": 0})["total"]
        ends = {source: rt.receiver("s", source=source) for source in (0, 2)}
        while ends:
            for source, end in list(ends.items()):
                message = next(end, None)
                if message is None:
                    del ends[source]
                    continue
                with message.consume() as effect:
                    total = effect["total"] = total + int(message.array[0])
        assert total == 2 * sum(range(1, TOTAL + 1)), total
    else:
        with rt.sender("s", to=1, KIND) as out:
            for seq in range(out.next_seq, TOTAL + 1):
                out.send(np.full(100, seq))
    assert not list(rt.job.directory.glob("ring-*"))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("spool=True", ["1@90msg", "2@70msg", "1@200msg"]),
        pytest.param("volatile=True", ["1@90msg", "1@200msg"], marks=pytest.mark.long),
    ],
)
def test_spooled_and_volatile_senders_and_no_ring_is_made(tmp_path, kind, faults):
    """Two senders into one receiver. Volatile: what the living sender holds is sent again."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("KIND", kind))
    options = ["-n", 3, "--spares", len(faults)]
    for fault in faults:
        options += ["--fault", f"kill:{fault}"]
    ended = run_job(tmp_path, options, program)
    assert ended.status == 0, ended.output
    assert len(ended.named("recovery")) == len(faults)
    audit = ended.report["audit"]
    assert audit["ok"] and audit["consumed"] == 300
