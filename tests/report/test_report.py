"""``ftrt report``: every number on the page is the files' own, and nothing is fetched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from campaign_files import write_campaign
from runtime_job import STREAM, run_job

from ftrt.cli import main
from ftrt.ledger.audit import audit
from ftrt.report.campaign import read_campaign
from ftrt.report.job import read_job
from ftrt.report.pages import campaign_page, campaign_tables
from ftrt.report.paper import paper, paper_rate

PNG = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """What a reader of the page sees, and what a browser would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.text, self.fetched, self._open = "", [], []
        self.feed(path.read_text())
        assert not self._open, "tags that are not closed"

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img", "source"):
            self._open.append(tag)
        self.fetched += [v[:40] for k, v in attrs if k in ("src", "href", "srcset")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            assert "url(" not in data and "@import" not in data
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def rows(self, heading: str) -> list[dict[str, str]]:
        """Rows of the first table whose first column has this heading."""
        found = next(table for table in self.tables if table[0][0] == heading)
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]


def drawn(directory, *options) -> list[Path]:
    result = CliRunner().invoke(main, ["report", str(directory), *options])
    assert result.exit_code == 0, result.output
    return [Path(line) for line in result.output.splitlines()]


def refused(*arguments) -> str:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1 and len(result.output) < 400
    return result.output


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    directory = tmp_path_factory.mktemp("campaign")
    summary = write_campaign(directory)
    return directory, summary, drawn(directory)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    faults = ["--fault", "kill:1@60msg", "--fault", "kill:0@120msg"]
    ended = run_job(directory, ["-n", 2, "--spares", 2, *faults], STREAM, "--messages", 200)
    assert ended.status == 0, ended.output
    return ended


def test_a_campaign_becomes_a_page_and_its_figures(campaign):
    directory, _, (page, *figures) = campaign
    assert page == directory / "report" / "report.html"
    names = ["figure2", "phases", "recovery"]
    assert [path.name for path in figures] == [f"{name}-host-mpi-tcp.png" for name in names]
    sizes = {path.read_bytes()[:8] for path in figures}
    assert sizes == {PNG}
    assert all(path.stat().st_size > 10_000 for path in figures)
    seen = Page(page)
    assert len([source for source in seen.fetched if "image/png" in source]) == 4 * len(figures)
    assert all(source.startswith("data:") for source in seen.fetched)


def test_its_tables_say_what_the_files_say(campaign):
    _, summary, (page, *_) = campaign
    seen = Page(page)
    table = next(t for t in seen.tables if t[0][:2] == ["cell", "trials"])
    assert len(table) == 1 + len(summary["cells"])
    for cell, row in zip(summary["cells"], table[1:], strict=True):
        name = f"{cell['path']} {cell['fault']} {cell['rule']} {cell['size']} B"
        assert row[:3] == [name, str(cell["trials"]), str(cell["tripped"])]
        assert (row[5], row[7]) == (f"{cell['losses']:,}", f"{cell['duplicates']:,}")
        if cell["losses"] == 0:
            assert float(row[6]) == pytest.approx(3 / cell["tripped"], rel=0.06)
        else:
            assert row[6] == "–"
    assert "there are no network namespaces here" in seen.text
    assert "ftrt campaign --trials 30 --out <out> & more" in seen.text  # escaped on the page


def test_the_table_beside_the_paper_is_of_both(campaign):
    directory, summary, (page, *_) = campaign
    row = next(r for r in Page(page).tables[0] if r[0] == "kill eager completion")
    ours = [c for c in summary["cells"] if (c["path"], c["rule"]) == ("eager", "completion")]
    ours = [c for c in ours if c["fault"] == "kill"]
    rate = sum(c["losses"] for c in ours) / sum(c["tripped"] for c in ours)
    assert row[1:4] == ["169", "4.0", "–"]
    assert row[4] == str(sum(c["tripped"] for c in ours))
    assert float(row[5]) == pytest.approx(rate, abs=0.05)
    group = read_campaign(directory).groups[0]
    found = group.rate("eager", "completion", "kill", "losses")
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(rate)
    zero = group.rate("eager", "consumption", "kill", "losses")
    assert (zero.value, zero.high) == (0.0, 3 / 60)


def test_the_papers_numbers_fit_each_other():
    cells = [cell for cell in paper()["cells"] if cell["rule"] == "consumption"]
    assert sum(cell["injected"] for cell in cells) == paper()["injected"] == 634
    assert sum(cell["tripped"] for cell in cells) == paper()["tripped"] == 423
    assert str(paper_rate("eager", "completion", "kill", "losses")) == "4.0"
    assert str(paper_rate("graph", "completion", "abort", "duplicates")) == "9.1"
    assert str(paper_rate("revoke", "completion", "pause", "losses")) == "≥ 0.43"
    assert paper_rate("eager", "completion", "pause", "duplicates") is None


def test_a_loss_under_consumption_and_an_oracle_that_disagrees_are_marked(tmp_path):
    summary = write_campaign(tmp_path, trials=6)
    broken = next(c for c in summary["cells"] if c["rule"] == "consumption")
    broken["losses"] = 2
    summary["complaints"] = ["trial 3: 2 lost"]
    (tmp_path / "campaign.json").write_text(json.dumps(summary))
    campaign = read_campaign(tmp_path)
    page = campaign_page(campaign)
    campaign_tables(page, campaign)
    text = page.html()
    assert len(re.findall('<tr class="bad">', text)) == 1
    assert "Ledger and oracle disagree in 1 cells" in text and "trial 3: 2 lost" in text
    assert text.count('class="verdict bad"') == 3


def test_keys_that_may_be_missing_may_be_missing(tmp_path):
    summary = write_campaign(tmp_path, trials=4)
    keep = ("plane", "path", "fault", "rule", "size", "trials", "tripped", "losses", "duplicates")
    cells = [{name: cell[name] for name in keep} for cell in summary["cells"]]
    (tmp_path / "campaign.json").write_text(json.dumps({"cells": cells}))
    (tmp_path / "trials.jsonl").unlink()
    page, *figures = drawn(tmp_path, "--out", str(tmp_path / "elsewhere"))
    assert page.parent == tmp_path / "elsewhere"
    assert [path.name for path in figures] == ["figure2-host.png"]


def test_a_trial_whose_line_is_half_written_is_left_out(tmp_path):
    write_campaign(tmp_path, trials=4)
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"cell": 3, "pla')
    assert len(read_campaign(tmp_path).groups[0].trials) == 4 * 36


def test_a_job_becomes_a_page(job):
    page, *figures = drawn(job.ledger)
    names = [path.name for path in figures]
    assert names[:3] == ["timeline.png", "recoveries.png", "streams.png"]
    assert set(names[3:]) <= {"messages.png"}  # of a job that was looked at three times
    seen = Page(page)
    row = seen.rows("stream")[0]
    assert (row["sent"], row["consumed"], row["losses"], row["closed"]) == (
        "200",
        "200",
        "0",
        "yes",
    )
    what = [row["what"] for row in seen.rows("seconds")]
    assert [what.count(name) for name in ("fault", "died", "recovery")] == [2, 2, 2]
    assert "audit ok: sent 200" in seen.text
    assert audit(job.ledger)["ok"]  # the report's folder is nothing to the ledger


def test_who_held_a_rank_when(job):
    found = read_job(job.ledger)
    spans = [(s.epoch, s.rank, s.process) for s in found.spans()]
    taken = {(e["epoch"], e["rank"]): e["process"] for e in job.named("promoted")}
    assert len(spans) == 6 and spans[:2] == [(1, 0, 0), (1, 1, 1)]
    for epoch, rank, process in spans:
        if (epoch, rank) in taken:
            assert process == taken[epoch, rank]
    died = {(e["process"], e["t"]) for e in job.named("died")}
    assert died <= {(s.process, s.end_s) for s in found.spans()}
    (points,) = found.progress().values()
    counts = [count for _, count in points]
    assert counts == sorted(counts) and counts[-1] <= 200 and counts[-1] > 0


def test_a_damaged_ledger_is_told_on_the_page(job, tmp_path):
    copy = tmp_path / "ledger"
    shutil.copytree(job.ledger, copy)
    victim = copy / "e000001-r0001-s000.h5"
    victim.write_bytes(victim.read_bytes()[:700])
    text = drawn(copy)[0].read_text()
    assert "audit NOT OK" in text and victim.name in text


def test_what_is_neither_is_refused(tmp_path):
    assert "there is no such folder" in refused(tmp_path / "nowhere")
    assert "neither a campaign nor a ledger" in refused(tmp_path)
    (tmp_path / "trials.jsonl").write_text("")
    assert "goes on where it was" in refused(tmp_path)
    (tmp_path / "campaign.json").write_text('{"cells": [{"plane": "host"}]}')
    assert "'path' is missing" in refused(tmp_path)
    (tmp_path / "campaign.json").write_text("[")
    assert "campaign.json" in refused(tmp_path)


def test_without_matplotlib_one_sentence_says_what_to_type(campaign):
    program = (
        "import sys; sys.modules['matplotlib'] = None; from ftrt.cli import main; "
        f"main(['report', {str(campaign[0])!r}])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.strip() == (
        "ftrt: figures need matplotlib, which is not installed: type pip install 'ftrt[plot]'"
    )


def test_a_copy_whose_files_have_other_times_says_the_same(job, tmp_path):
    shutil.copytree(job.ledger, tmp_path / "copy", copy_function=shutil.copyfile)
    mine, copied = read_job(job.ledger), read_job(tmp_path / "copy")
    assert copied.begins_s()[1] == pytest.approx(mine.begins_s()[1], abs=0.2)
    assert copied.ends_s[1] == pytest.approx(mine.ends_s[1], abs=0.5)
