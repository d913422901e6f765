"""The verdict on what ranks recorded, and the faults that a restart still has to inject."""

import json

import pytest

from ftrt.launch.faults import parse_fault
from ftrt.launch.judge import judge, read_ranks
from ftrt.launch.run import audit_line, remaining_faults
from ftrt.launch.screen import event_line


def record(status, reason="", traceback=""):
    return {"status": status, "reason": reason, "traceback": traceback}


DONE, ERROR, FAILED = record("done"), record("error", "KeyError: 'x'", "T"), record("failed", "why")


@pytest.mark.parametrize(
    ("records", "ended", "kind"),
    [
        ({}, False, "running"),
        ({0: DONE}, False, "running"),
        ({0: DONE, 1: DONE}, False, "done"),
        ({0: DONE, 1: DONE}, True, "done"),
        ({0: DONE}, True, "failed"),
        ({}, True, "failed"),
        ({0: FAILED}, False, "failed"),
        ({0: DONE, 1: FAILED}, True, "failed"),
        ({1: ERROR}, False, "error"),
        ({0: FAILED, 1: ERROR}, True, "error"),
    ],
)
def test_verdict(records, ended, kind):
    assert judge(records, 2, ended).kind == kind


def test_reason_names_the_rank():
    assert "rank 1: why" in judge({0: DONE, 1: FAILED}, 2, True).reason
    assert "of rank 1, 2" in judge({0: DONE}, 3, True).reason
    assert judge({1: ERROR}, 2, False).traceback == "T"


def test_half_written_record_counts_as_absent(tmp_path):
    (tmp_path / "rank-0.json").write_text(json.dumps(DONE))
    (tmp_path / "rank-1.json").write_text('{"status": "do')
    assert read_ranks(tmp_path, 3) == {0: DONE}


def specs(faults):
    return [fault.spec for fault in faults]


def test_a_fault_that_happened_is_not_repeated():
    faults = [parse_fault(s) for s in ("kill:1@90msg", "kill:1@20msg", "kill:2@20msg")]
    events = [{"event": "fault", "rank": 1}, {"event": "died", "rank": 1}]
    assert specs(remaining_faults(faults, events, {0, 1, 2})) == ["kill:2@20msg", "kill:1@90msg"]


def test_a_rank_without_a_record_has_had_its_fault():
    faults = [parse_fault("kill:1@90msg"), parse_fault("kill:2@95msg")]
    assert specs(remaining_faults(faults, [], {0, 2})) == ["kill:2@95msg"]


def test_event_line_has_phases_in_ms():
    event = {"t": 2, "event": "recovery", "rank": 1, "epoch": 2, "phases_ms": {"seal": 0.5}}
    assert event_line(event) == "  2.000 s  recovery   rank 1, epoch 2, seal 0.5 ms"
    assert event_line({"event": "progress"}) is None


def test_audit_line_counts():
    line = audit_line({"ok": False, "sent": 3, "losses": [{"seq": 2}], "open": []})
    assert line == "audit NOT OK: sent 3, losses 1, open 0"
