"""Jobs side by side, and a campaign that has only so much time."""

from __future__ import annotations

import json
import threading
import time

import pytest
from click.testing import CliRunner

from ftrt.campaign.cells import Cell
from ftrt.campaign.plan import Batch, plan_trial
from ftrt.campaign.pool import Enough, Pool, jobs_at_once
from ftrt.campaign.run import Campaign, Options
from ftrt.cli import main


class Jobs:
    """Named jobs that note how many of them run at once."""

    def __init__(self, takes_s=0.05):
        self.lock, self.running, self.most, self.done = threading.Lock(), 0, 0, []
        self.takes_s = takes_s

    def __call__(self, name):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.takes_s)
        with self.lock:
            self.running -= 1
            self.done.append(name)


def pool_of(jobs, at_once, enough=None):
    return Pool(jobs, at_once, lambda job: 0.0, enough or Enough())


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_run_at_once_than_may(at_once):
    jobs = Jobs()
    pool_of(jobs, lambda job: at_once).go_through(iter(range(9)))
    assert sorted(jobs.done) == list(range(9)) and jobs.most == at_once


def test_one_that_needs_the_machine_waits_for_the_others_and_they_for_it():
    jobs, alone = Jobs(), []

    def run(name):
        jobs(name)
        if name == "alone":
            alone.append(jobs.running)

    pool_of(run, lambda job: 1 if job == "alone" else 4).go_through(iter(["a", "b", "alone", "c"]))
    assert alone == [0] and set(jobs.done[:2]) == {"a", "b"} and jobs.done[3] == "c"


def test_nothing_begins_once_the_time_is_up():
    jobs = Jobs(takes_s=0.2)
    pool_of(jobs, lambda job: 1, Enough(budget_s=0.3)).go_through(iter(range(50)))
    assert jobs.done == [0, 1]


def test_a_job_that_cannot_start_in_time_is_left_out_and_a_shorter_one_is_not():
    jobs = Jobs()
    pool = Pool(jobs, lambda job: 1, lambda job: 60.0 if job == "long" else 0.0, Enough(5.0))
    pool.go_through(iter(["long", "short"]))
    assert jobs.done == ["short"]


def test_an_error_ends_it_and_is_raised():
    def run(name):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        pool_of(run, lambda job: 1).go_through(iter(range(50)))


def test_an_interrupt_lets_those_that_run_end():
    jobs, enough = Jobs(takes_s=0.2), Enough()

    def interrupted():
        yield "first"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool_of(jobs, lambda job: 4, enough).go_through(interrupted())
    assert jobs.done == ["first"] and enough()


def test_pauses_share_the_cores_and_kills_do_not():
    assert jobs_at_once("pause", cores=2) == 4 and jobs_at_once("kill", cores=2) == 1
    assert jobs_at_once("kill", cores=1) == 1 and jobs_at_once("kill", cores=16) == 8


def test_an_injection_lies_before_the_last_window():
    cell = Cell("host", "eager", "kill", "consumption", 16)
    trials = tuple(plan_trial(0, cell, number) for number in range(400))
    batch = Batch(cell, trials, 1024, 32)
    aims = [batch.aim(trial) for trial in trials]
    assert 1 <= min(aims) < 40 and 950 < max(aims) <= 1024 - 32


def test_cells_with_the_least_trials_come_first(tmp_path):
    cells = [Cell("host", "eager", fault, "consumption", 16) for fault in ("kill", "pause")]
    options = Options(cells, 100, tmp_path / "out", kills=40, controls=0)
    campaign = Campaign.open(options)
    faults = [batch.cell.fault for _, batch in campaign._batches()]
    assert faults == ["pause", "kill", "pause", "pause", "kill"]
    lines = [{"trial": number, "control": False} for number in range(100)]
    campaign.store.add(1, {}, lines[:70])
    assert [batch.cell.fault for _, batch in campaign._batches()] == ["kill", "pause", "kill"]
    campaign.store.close()


@pytest.mark.timeout(110)
def test_a_campaign_ends_when_its_time_is_up_and_goes_on(tmp_path):
    out = tmp_path / "out"
    cell = ["--path", "eager", "--fault", "abort", "--rule", "consumption", "--size", 16]
    more = ["--trials", 400, "--controls", 4, "--messages", 4096, "--out", out]

    def run(budget_s):
        words = ["campaign", *cell, *more, "--budget-s", budget_s]
        begin = time.monotonic()
        ended = CliRunner().invoke(main, [str(word) for word in words])
        assert ended.exit_code == 0, ended.output
        assert "the same command goes on" in ended.output
        lines = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
        return time.monotonic() - begin, [t["trial"] for t in lines if not t["control"]]

    took_s, trials = run(5)
    assert took_s < 40 and trials == list(range(len(trials))) and len(trials) < 400
    took_s, more_trials = run(5)
    assert more_trials[: len(trials)] == trials and len(more_trials) > len(trials)


@pytest.mark.parametrize(
    "option, said",
    [("--jobs", "1 to 64"), ("--budget-s", "above 0"), ("--kills", "at least 1")],
)
def test_usage(tmp_path, option, said):
    words = ["campaign", "--out", str(tmp_path / "out"), option, "0"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2 and said in ended.output
    assert not (tmp_path / "out").exists()
