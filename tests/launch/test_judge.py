"""The verdict on what ranks recorded, and how events and audits are told."""

import json

import pytest

from ftrt.launch.judge import before_the_job, judge, read_ranks
from ftrt.launch.screen import Suspicions, event_line
from ftrt.launch.summary import audit_line


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


def test_a_program_that_leaves_is_not_said_to_raise():
    left = record("error", "SystemExit: 2")
    reason = judge({1: left}, 2, False).reason
    assert reason == "rank 1 called sys.exit(2) before its work was done"


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (0, "error", "status 0"),
        (3, "error", "status 3"),
        (137, "failed", "signal 9"),
        (-15, "failed", "signal 15"),
    ],
)
def test_an_end_before_the_job(status, kind, says):
    verdict = before_the_job(status)
    assert verdict.kind == kind and says in verdict.reason


def test_half_written_record_counts_as_absent(tmp_path):
    (tmp_path / "rank-0.json").write_text(json.dumps(DONE))
    (tmp_path / "rank-1.json").write_text('{"status": "do')
    assert read_ranks(tmp_path, 3) == {0: DONE}


def test_event_line_has_phases_in_ms():
    phases = {"close": 0.5, "record": 1.26}
    event = {"t": 2, "event": "recovery", "rank": 1, "epoch": 2, "phases_ms": phases}
    assert event_line(event) == "  2.000 s recovery  rank 1, epoch 2, 1.8 ms: close 0.5 record 1.3"
    assert event_line({"event": "progress"}) is None


def test_audit_line_counts():
    line = audit_line({"ok": False, "sent": 3, "losses": [{"seq": 2}], "open": []})
    assert line == "audit NOT OK: sent 3, losses 1"
    assert audit_line({"ok": True, "sent": 3, "dropped": 1}) == "audit ok: sent 3, dropped 1"


def suspected(t):
    return {"t": t, "event": "suspected", "process": 2}


def cleared(t):
    return {"t": t, "event": "cleared", "process": 2}


def test_short_suspicions_are_not_shown():
    suspicions = Suspicions(0.5)
    other = {"t": 1.1, "event": "fault"}
    assert suspicions.pass_on([suspected(1.0), other], 11.0) == [other]
    assert suspicions.pass_on([cleared(1.2)], 11.2) == []
    assert suspicions.pass_on([], 13.0) == []


def test_long_suspicions_are_shown_with_their_end():
    suspicions = Suspicions(0.5)
    assert suspicions.pass_on([suspected(1.0)], 11.0) == []
    assert suspicions.pass_on([], 11.6) == [suspected(1.0)]
    assert suspicions.pass_on([cleared(1.8)], 11.8) == [cleared(1.8)]
    assert suspicions.pass_on([suspected(2.0), cleared(2.9)], 12.9) == [
        suspected(2.0),
        cleared(2.9),
    ]


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        ("failed", "why", "rank 0: why"),
        ("failed", "rank 0, epoch 1: why", "rank 0, epoch 1: why"),
        ("error", "KeyError: 'x'", "rank 0 raised KeyError: 'x'"),
        ("error", "KeyboardInterrupt: ", "rank 0 raised KeyboardInterrupt"),
        ("error", "", "rank 0 raised an exception"),
        ("error", "SystemExit: 3", "rank 0 called sys.exit(3) before its work was done"),
    ],
)
def test_the_sentence_of_a_verdict(status, reason, says):
    assert judge({0: record(status, reason)}, 1, True).reason == says
