"""Recoveries as text: each script has the transcript that it had when somebody read it."""

from pathlib import Path

import pytest

from ftrt.errors import UsageError
from ftrt.sim.scenario import RULE, main, parse, play

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


def test_there_are_twenty_or_more():
    assert len(SCENARIOS) >= 20
    assert all(path.read_text().startswith("# ") for path in SCENARIOS)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_transcript_is_what_happens(path):
    script, transcript = path.read_text().split(f"\n{RULE}\n")
    assert play(script) == transcript.rstrip("\n"), (
        f"read what changed, then type `python -m ftrt.sim.scenario --update {path}`"
    )


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_fault_of_a_script_happens(path):
    script, transcript = path.read_text().split(f"\n{RULE}\n")
    faults = [line for line in transcript.splitlines() if line.startswith("fault ")]
    assert len(faults) == len(parse(script).faults)
    assert transcript.count("the job is done") + transcript.count("the job ends without") == 1


@pytest.mark.parametrize(
    "line",
    [
        "ranks many",
        "nonsense 3",
        "at 5ms kill 1",
        "at 5us explode 1",
        "in dreams kill 1",
        "stream a 0-1 20",
        "stream a 0->1 20 depth=3",
    ],
)
def test_a_line_that_is_not_understood_is_named(line):
    with pytest.raises(UsageError, match="scenario: '" + line[:8]):
        parse("ranks 2\n" + line)


def test_transcripts_can_be_written(tmp_path, capsys):
    copy = tmp_path / "one.txt"
    copy.write_text(SCENARIOS[0].read_text().split(f"\n{RULE}\n")[0])
    main([str(copy)])
    assert capsys.readouterr().out.rstrip() == SCENARIOS[0].read_text().rstrip()
    main(["--update", str(copy)])
    assert copy.read_text() == SCENARIOS[0].read_text()
