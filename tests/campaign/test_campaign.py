"""The campaign: small real ones, what it says of accounts that disagree, and bad input."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner

from ftrt.campaign import links, trace
from ftrt.campaign.batch import run_batch
from ftrt.campaign.cells import Cell, table
from ftrt.campaign.judge import Judge
from ftrt.campaign.links import reason_without_links
from ftrt.campaign.page import At, Page
from ftrt.campaign.places import Place
from ftrt.campaign.plan import Batch, plan_trial, warm_up
from ftrt.campaign.results import page
from ftrt.campaign.run import Campaign, Options
from ftrt.campaign.store import Store, setting_of
from ftrt.campaign.tally import tally
from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.launch.outside import Outcome

CELL = Cell("host", "eager", "kill", "consumption", 16)


@pytest.fixture(autouse=True)
def few_figures(request, monkeypatch):
    """They take as long as the trials; one test looks at them."""
    if "graph" not in request.node.name:
        monkeypatch.setattr("ftrt.campaign.command._draw", lambda directory, say: None)


def invoke(*arguments):
    return CliRunner().invoke(main, ["campaign", *map(str, arguments)])


# -- real trials ------------------------------------------------------------------------------


def small(out, path, fault, *more):
    """Run a campaign of a few trials under both rules; its summary by rule, and its trials."""
    ended = invoke(
        *("--path", path, "--fault", fault, "--size", 16, "--controls", 4),
        *("--out", out, "--json", *more),
    )
    assert ended.exit_code == 0, ended.output
    summary = json.loads((out / "campaign.json").read_text())
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return {cell["rule"]: cell for cell in summary["cells"]}, trials


def check_both(cells, trials):
    """Nothing is wrong by our rule, and no account disagrees with another."""
    ours = cells["consumption"]
    assert ours["losses"] == ours["duplicates"] == 0 and ours["tripped"] > 0
    assert ours["bound_loss"] == pytest.approx(3 / ours["tripped"])
    for cell in cells.values():
        assert cell["oracle"]["open"] <= cell["tripped"]
        assert cell["oracle"]["losses"] == cell["losses"]
        assert cell["oracle"]["duplicates"] == cell["duplicates"]
        assert cell["controls"]["trials"] == 4
        assert not any(cell["controls"][n] for n in ("losses", "duplicates", "stale", "trips"))
    assert all(line["wire_bytes"] > 16 * line["sent"] for line in trials)


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_graph_is_duplicated_where_completion_decides(tmp_path):
    cells, trials = small(tmp_path / "out", "graph", "kill", "--trials", 3, "--interval-us", 60)
    check_both(cells, trials)
    assert cells["completion"]["ambiguous"] > 0
    assert cells["completion"]["duplicates"] > 0
    phases = cells["consumption"]["phases_ms"]
    assert list(phases) == ["detect", "close", "record", "publish", "resume"]
    drawn = tmp_path / "out" / "report"
    names = {"report.html", *(f"{n}-host-tcp.png" for n in ("figure2", "phases", "recovery"))}
    assert {path.name for path in drawn.iterdir()} == names
    told = f"{cells['completion']['duplicates']:,} duplicated"
    assert told in (drawn / "report.html").read_text()


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_pause_loses_where_completion_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("ftrt.campaign.plan.PAUSE_MS", (700, 800))
    cells, trials = small(tmp_path / "out", "revoke", "pause", "--trials", 2)
    check_both(cells, trials)
    assert cells["completion"]["losses"] > 0
    assert list(cells["consumption"]["phases_ms"]) == ["detect", "revoke", "rebuild", "resume"]


@pytest.mark.timeout(110)
def test_the_plane_between_gpus_with_a_library_in_plain_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("FTRT_NCCL_LIBRARY", "fake")
    monkeypatch.setenv("FTRT_FAKE_GPUS", "2")
    out = tmp_path / "out"
    more = ["--plane", "nccl", "--rule", "consumption", "--trials", 2, "--messages", 128]
    cells, trials = small(out, "graph", "kill", *more)
    check_both(cells, trials)
    assert cells["consumption"]["transport"] == "fake"


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_link_of_a_network_namespace_is_cut(tmp_path, monkeypatch):
    if reason := reason_without_links():
        pytest.skip(reason)
    monkeypatch.setattr("ftrt.campaign.plan.PAUSE_MS", (700, 800))
    monkeypatch.setattr("ftrt.campaign.links.NETEM", {"cut": links.NETEM["cut"]})
    more = ["--rule", "consumption", "--trials", 2]
    cells, trials = small(tmp_path / "out", "eager", "link", *more)
    check_both(cells, trials)
    assert max(trial["length_ms"] for trial in trials) > 500


@pytest.mark.long
@pytest.mark.timeout(110)
def test_it_goes_on_where_it_was_and_repeats_a_trial(tmp_path):
    out = tmp_path / "out"
    small(out, "eager", "abort", "--trials", 2, "--rule", "consumption")
    first = (out / "trials.jsonl").read_text()
    cells, trials = small(out, "eager", "abort", "--trials", 5, "--rule", "consumption")
    assert (out / "trials.jsonl").read_text().startswith(first)
    assert [t["trial"] for t in trials if not t["control"]] == [0, 1, 2, 3, 4]
    assert cells["consumption"]["trials"] == 5
    cell = table(faults=["abort"], paths=["eager"], rules=["consumption"], sizes=[16])[0]
    assert trials[-1]["seed"] == plan_trial(0, cell, 4).seed
    chosen = ["--path", "eager", "--fault", "abort", "--rule", "consumption", "--size", 16]
    again = invoke(*chosen, "--replay", "0:4")
    assert again.exit_code == 0, again.output
    assert f'"seed": {trials[-1]["seed"]}' in again.output
    assert "abort: the channel is given up" in again.output


@pytest.mark.timeout(110)
def test_a_death_outside_of_the_plan_ends_it(tmp_path, monkeypatch):
    trials = tuple(plan_trial(0, CELL, k, control=True) for k in range(2))
    batch = Batch(Cell("host", "eager", "kill", "consumption", 16), trials, 20_000, 100)
    made = Page.create

    def create(path):
        page = made(path)

        def strike():
            while page.get(At.TRIAL) < 1:
                time.sleep(0.01)
            os.kill(page.get(At.PIDS + 1), signal.SIGKILL)

        threading.Thread(target=strike, daemon=True).start()
        return page

    monkeypatch.setattr("ftrt.campaign.page.Page.create", create)
    judged = run_batch(batch, Place("tcp"))
    said = " ".join(judged.complaints)
    assert "outside of the plan" in said and "rank 1" in said


# -- accounts ---------------------------------------------------------------------------------


def test_a_trace_keeps_what_a_killed_process_did(tmp_path):
    child = os.fork()
    if child == 0:
        writer = trace.Trace(tmp_path, 1)
        for seq in range(1, 40_000):
            writer.begun(seq)
            writer.committed(seq)
        writer.begun(40_000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    after = trace.Trace(tmp_path, 1)
    after.begun(7)
    after.committed(7)
    account = trace.read(tmp_path, 1)[0]
    assert account.commits[7] == 2 and account.commits[39_999] == 1
    assert account.allows(40_000, 0) and account.allows(40_000, 1)
    assert not account.allows(40_000, 2) and not account.allows(7, 1)
    assert (np.diff(account.times_ns[:, 1]) >= 0).all()


class Told(Judge):
    """A judge whose ledger says what a test wants."""

    def _ledger_counts(self):
        counts = np.zeros(self._batch.messages * len(self._batch.trials) + 1, np.int64)
        counts[1:] = 1
        return counts


@pytest.mark.parametrize(
    "again, missing, said",
    [((), (), None), ((5,), (), "disagree"), ((), (9,), "disagree")],
)
def test_accounts_that_disagree_fail_the_campaign(tmp_path, again, missing, said):
    batch = Batch(CELL, (plan_trial(0, CELL, 0),), 16, 0)
    writer = trace.Trace(tmp_path / "trace", 1)
    for seq in [*(s for s in range(1, 17) if s not in missing), *again]:
        writer.begun(seq)
        writer.committed(seq)
    note = {"position": 1, "start_ns": 0, "end_ns": time.monotonic_ns(), "trips": []}
    (tmp_path / "sender-1.jsonl").write_text(json.dumps({**note, "wire_bytes": 0}) + "\n")
    outcome = Outcome(0, "", {"audit": {"ok": True}}, [])
    complaints = Told(batch, tmp_path, {}, 0, outcome).judge().complaints
    assert bool(complaints) == (said is not None)
    assert said is None or said in complaints[0]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"control": True, "trips": 1}, "nothing was injected"),
        ({"control": True, "empty": 3}, "nothing was injected"),
        ({"losses": 1}, "1 lost"),
        ({"duplicates": 2}, "2 duplicated"),
    ],
)
def test_what_it_complains_of(tmp_path, changed, said):
    batch = Batch(CELL, (plan_trial(0, CELL, 0),), 16, 0)
    judge = Told(batch, tmp_path, {}, 0, Outcome(0, ""))
    judge._account = trace.Account()
    judge._account.commits.update(range(1, 17))
    zero = dict.fromkeys(("duplicates", "losses", "stale", "empty", "torn", "trips"), 0)
    line = {"trial": 0, "control": False, **zero}
    assert judge._about(1, line) == []
    assert said in judge._about(1, {**line, **changed})[0]


def test_a_zero_has_a_bound_and_a_cell_that_never_tripped_has_none():
    zero = dict.fromkeys(("duplicates", "losses", "stale", "empty", "torn"), 0)
    oracle = {"oracle_losses": 0, "oracle_duplicates": 0, "oracle_open": 0}
    line = {"control": False, "tripped": True, "ambiguous": True, "sent": 9, "wire_bytes": 1}
    line |= {"recovery_ms": 2.0, "phases_ms": {"detect": 2.0}, "trips": 1, **zero, **oracle}
    found = tally(CELL, "tcp", [line] * 30)
    assert found["bound_loss"] == 0.1 and found["ambiguous_share"] == 1
    lost = tally(CELL, "tcp", [{**line, "losses": 1}] * 30)
    assert lost["bound_loss"] is None and lost["bound_duplicate"] == 0.1
    assert tally(CELL, "tcp", [{**line, "tripped": False}])["bound_loss"] is None


def test_the_page_of_results_adds_up_and_names_what_was_not_run():
    zero = dict.fromkeys(("duplicates", "losses", "stale", "empty", "torn"), 0)
    line = {"control": False, "tripped": True, "ambiguous": True, "sent": 9, "wire_bytes": 1}
    line |= {"recovery_ms": 2.0, "phases_ms": {"detect": 2.0}, "trips": 1, **zero}
    line |= {"oracle_losses": 0, "oracle_duplicates": 0, "oracle_open": 0}
    other = Cell("host", "graph", "kill", "consumption", 16)
    summary = {"command": "ftrt campaign", "seed": 1, "versions": {"ftrt": "0"}, "complaints": []}
    summary["cells"] = [tally(CELL, "tcp", [line] * 60), tally(other, "tcp", [])]
    summary["not_run"] = [{"cell": {}, "reason": "no GPU"}]
    text = page(summary)
    assert "60 tripped faults: 0 messages lost, 0 duplicated" in text and "below 5.00 %" in text
    assert "graph kill 16 consumption" in text and "no GPU" in text
    lost = [{**line, "losses": 2, "control": False}] * 3
    assert "6 messages lost" in page({**summary, "cells": [tally(CELL, "tcp", lost)]})


def test_all_chance_of_a_trial_comes_from_the_seed():
    trials = [plan_trial(3, CELL, k) for k in range(300)]
    assert trials == [plan_trial(3, CELL, k) for k in range(300)]
    assert trials[0] != plan_trial(4, CELL, 0)
    assert 0.4 < float(np.mean([t.when for t in trials])) < 0.6
    assert min(t.pause_ms for t in trials) < 150 and max(t.pause_ms for t in trials) > 750


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--trials", 0], "must be at least 1"),
        (["--trials", -3], "must be at least 1"),
        (["--size", 12], "multiple of 8"),
        (["--messages", 8], "at least 64"),
        (["--replay", "x"], "SEED:TRIAL"),
        (["--replay", "1:2"], "one cell"),
    ],
)
def test_usage(tmp_path, arguments, said):
    ended = invoke("--out", tmp_path / "out", *arguments)
    assert ended.exit_code == 2 and said in ended.output
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it(tmp_path):
    setting = setting_of([CELL], 1, messages=None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UsageError, match="no campaign"):
        Store(tmp_path / "other", setting)
    first = Store(tmp_path / "mine", setting)
    with pytest.raises(UsageError, match="another process"):
        Store(tmp_path / "mine", setting)
    first.close()
    with pytest.raises(UsageError, match="another campaign.*seed"):
        Store(tmp_path / "mine", setting_of([CELL], 2, messages=None))


def test_half_a_line_at_the_end_is_forgotten(tmp_path):
    setting = setting_of([CELL], 1)
    store = Store(tmp_path, setting)
    store.add(0, {}, [{"trial": 0, "control": False}])
    store.close()
    with open(tmp_path / "trials.jsonl", "a") as file:
        file.write('{"cell": 0, "tri')
    again = Store(tmp_path, setting)
    assert again.done(0, control=False) == {0}
    again.add(0, {}, [{"trial": 1, "control": False}])
    again.close()
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2


def test_a_cell_that_cannot_run_is_listed_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ftrt.campaign.places.place_of", lambda cell: Place("none", "there is no such machine")
    )
    ended = invoke("--out", tmp_path / "out", "--trials", 1, "--json")
    summary = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert ended.exit_code == 0 and summary["cells"] == []
    assert {entry["reason"] for entry in summary["not_run"]} == {"there is no such machine"}
    assert len(summary["not_run"]) == 48


# -- a job's very first run ---------------------------------------------------------------------


@pytest.mark.parametrize("trips", [[], ["stall"]])
def test_the_first_run_of_a_job_is_no_control(tmp_path, trips):
    """It may be so slow that its sender gives up; but what it lost would be lost."""
    batch = Batch(CELL, (warm_up(0, CELL), plan_trial(0, CELL, 0, control=True)), 16, 0)
    writer = trace.Trace(tmp_path / "trace", 1)
    for seq in range(1, 33):
        writer.begun(seq)
        writer.committed(seq)
    now = time.monotonic_ns()
    trip = {"t_ns": now, "cause": "stall", "open": [], "upto": 16, "end_ns": now, "phases_ms": {}}
    note = {"start_ns": 0, "end_ns": now, "wire_bytes": 0}
    notes = [
        {**note, "position": 1, "trips": [trip for _ in trips]},
        {**note, "position": 2, "trips": []},
    ]
    (tmp_path / "sender-1.jsonl").write_text("".join(json.dumps(n) + "\n" for n in notes))
    judged = Told(batch, tmp_path, {}, 0, Outcome(0, "", {"audit": {"ok": True}})).judge()
    assert judged.complaints == [] and len(judged.lines) == 1
    assert judged.lines[0]["control"] and judged.lines[0]["trips"] == 0
    told = Told(batch, tmp_path, {}, 0, Outcome(0, "", {"audit": {"ok": True}}))
    told._ledger[3] = 0
    assert "disagree" in told.judge().complaints[0]


def test_each_job_of_a_campaign_begins_with_a_run_that_does_not_count(tmp_path):
    campaign = Campaign.open(Options([CELL], trials=50, out=tmp_path / "out", controls=8))
    batches = [batch for _, batch in campaign._batches()]
    assert len(batches) == 3
    for batch in batches:
        assert [trial.counts for trial in batch.trials].count(False) == 1
        assert not batch.trials[0].counts and batch.trials[1].control
    assert campaign.left == 50 + 12
    campaign.store.close()
