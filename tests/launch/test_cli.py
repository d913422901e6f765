"""What the commands print and how they exit."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ftrt import cli
from ftrt.launch.summary import unclean

STREAM = {
    "stream": "a-stream-with-a-name-that-is-as-long-as-a-name-may-be-which-is-64",
    "source": 1,
    "sent": 100_000_000,
    "consumed": 100_000_000,
    "dropped": 0,
    "duplicates": 0,
    "losses": 0,
    "closed": True,
}


@pytest.fixture
def audit(monkeypatch, tmp_path):
    def run(found, *options):
        monkeypatch.setattr("ftrt.ledger.audit.audit", lambda directory: found)
        return CliRunner().invoke(cli.main, ["audit", str(tmp_path), *options])

    return run


def test_clean_audit_fits_80_columns(audit):
    result = audit({"ok": True, "sent": 3, "streams": [STREAM]})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert result.output.splitlines()[-1] == "audit ok: sent 3"


def test_audit_with_a_loss_is_status_1(audit):
    result = audit({"ok": False, "losses": 1, "streams": [{**STREAM, "losses": 1}]})
    assert result.exit_code == 1
    assert "audit NOT OK: losses 1" in result.output


def test_an_effect_of_what_nobody_sent_is_told(audit):
    found = {"ok": False, "sent": 5, "losses": 0, "streams": [{**STREAM, "unsent": 2}]}
    assert "NOT OK: sent 5, losses 0, 2 of a number that no sender" in audit(found).output


def test_audit_as_json(audit):
    found = {"ok": True, "streams": [STREAM]}
    assert json.loads(audit(found, "--json").output) == found


@pytest.mark.parametrize("words", [[], ["bench"]])
def test_every_command_is_told_in_a_whole_line(words):
    group = cli.bench if words else cli.main
    text = CliRunner().invoke(cli.main, [*words, "--help"], terminal_width=80).output
    lines = text.partition("Commands:")[2].strip().splitlines()
    assert [line.split()[0] for line in lines] == sorted(group.commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)
    for name in group.commands:
        text = CliRunner().invoke(cli.main, [*words, name, "--help"], terminal_width=80).output
        assert "ftrt.bench" not in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"losses": 2}, ": stream 's' from rank 1: 2 lost"),
        ({"duplicates": 1, "dest": 3}, ": stream 's' from rank 1 to rank 3: 1 twice"),
        ({"unsent": 4}, ": stream 's' from rank 1: 4 of a number that nobody sent"),
        ({"closed": False}, ": stream 's' from rank 1: its sender did not close it"),
        ({}, ""),
    ],
)
def test_the_reason_tells_where_the_audit_found_what(row, says):
    row = {**STREAM, "stream": "s", **row}
    assert unclean({"streams": [STREAM, row, STREAM]}) == f"the audit is not clean{says}"


def test_unreadable_ledger_is_status_2_and_one_line(tmp_path):
    result = CliRunner().invoke(cli.main, ["audit", str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert str(tmp_path / "nothing") in result.output


def test_noisy_benchmark_says_so(capsys):
    row = {"what": "commit", "size": 1, "unit": "ns", "raw": 80.0, "ftrt": 90.0, "ratio": 1.125}
    cli._print_rows([{**row, "spread": 0.02}])
    assert "spread by" not in capsys.readouterr().out
    cli._print_rows([{**row, "spread": 0.2}])
    assert "raw itself spread by more than 10% in: commit" in capsys.readouterr().out


def test_what_precedes_mpirun_is_light():
    """Every job waits for these imports; numba alone takes half a second."""
    code = "import sys, ftrt.launch.run, ftrt.ledger.leftovers, ftrt.ledger.record, ftrt.host.start"
    code += "; sys.exit(bool({'numpy', 'numba', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], timeout=30)
    assert done.returncode == 0
