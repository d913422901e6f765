"""The command: its report, the bad seed it tells of, cases that are kept."""

import json

import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.sim import case
from ftrt.sim.plan import make_plan

from .mutations import switched_on


def invoke(*arguments):
    return CliRunner().invoke(main, ["sim", *map(str, arguments)])


def test_the_report_is_json():
    result = invoke("--ranks", 5, "--seeds", 60, "--seed", 7, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["violations"] == 0 and found["first_bad_seed"] is None
    assert found["seeds"] == 60 and set(found["messages_per_rank"]) == {"mean", "max"}
    assert found["messages_per_rank"]["max"] >= found["messages_per_rank"]["mean"] > 0
    assert found["depth"] > 0 and found["faults_inside_recoveries"] > 0


def test_a_bad_seed_says_how_to_repeat_it(tmp_path):
    kept = tmp_path / "case.json"
    with switched_on("go_on_behind_what_was_sent"):
        result = invoke("--seeds", 25, "--workers", 1, "--save", kept)
        seed = int(result.stdout.split("\nseed ")[1].split(" ")[0])
        assert result.exit_code == 1
        assert f"repeat it: ftrt sim --ranks 4 --seeds 1 --seed {seed}" in result.stdout
        assert "never took effect" in result.stdout.splitlines()[-2]
        again = invoke("--replay", kept)
        assert again.exit_code == 1 and "never took effect" in again.stdout
        found = json.loads(invoke("--seeds", 25, "--json").stdout)
        assert found["first_bad_seed"] == seed and found["violations"] >= 1
    assert invoke("--replay", kept).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ranks", 1), "use 2 to 65536"),
        (("--ranks", -4), "use 2 to 65536"),
        (("--ranks", 65_537), "use 2 to 65536"),
        (("--ranks", 100, "--seeds", 100_000), "use 1 to 10000"),
        (("--seeds", 0), "use 1 to"),
        (("--seeds", 10_000_001), "use 1 to"),
        (("--seed", -3), "use 0 to"),
        (("--seed", (1 << 62) - 5, "--seeds", 10), "use 0 to"),
        (("--ranks", 100, "--seed", -1), "from 0 on"),
        (("--workers", 0), "at least 1"),
        (("--replay", "/nonexistent"), "is no case"),
        (("--save", "/nonexistent/case.json"), "name a file in a folder that exists"),
        (("--save", "/"), "name a file in a folder that exists"),
    ],
)
def test_what_cannot_be_is_refused(arguments, says):
    result = invoke(*arguments)
    assert result.exit_code == 2 and says in result.stderr
    assert result.stderr.startswith("ftrt: ") and result.stderr.count("\n") == 1


def test_a_case_of_other_code_is_refused(tmp_path):
    kept = tmp_path / "case.json"
    case.save(kept, make_plan(4, 9))
    assert case.load(kept) == make_plan(4, 9)
    kept.write_text(kept.read_text().replace(case.code_digest(), "0123456789abcdef"))
    result = invoke("--replay", kept)
    assert result.exit_code == 2 and "--ranks 4 --seeds 1 --seed 9" in result.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda case: case.update(format=2), "has format 2, this ftrt reads format 1"),
        (lambda case: case.update(code=None), "was written by other code"),
        (
            lambda case: (case.update(code="0" * 16), case["plan"].update(field_of_later_code=1)),
            "was written by other code",
        ),
        (lambda case: case.update(plan=[]), "is no case"),
        (lambda case: case["plan"].update(ranks=-3), "--ranks -3"),
        (lambda case: case["plan"].update(hosts=0), "changed by hand"),
        (lambda case: case["plan"]["faults"][0].update(kind="explode"), "changed by hand"),
        (lambda case: case["plan"]["streams"][0].update(dest=77), "changed by hand"),
        (lambda case: case["plan"]["streams"][0].update(last=10**9), "changed by hand"),
        (lambda case: case["plan"]["streams"].pop(), "changed by hand"),
    ],
)
def test_a_case_that_fits_no_seed_of_this_code_is_refused(tmp_path, change, says):
    kept = tmp_path / "case.json"
    plan = make_plan(4, 9)
    case.save(kept, plan._replace(faults=plan.faults[1:]))
    assert case.load(kept).faults == plan.faults[1:]
    changed = json.loads(kept.read_text())
    change(changed)
    kept.write_text(json.dumps(changed))
    result = invoke("--replay", kept)
    assert result.exit_code == 2 and says in result.stderr
    assert result.stderr.startswith("ftrt: ") and result.stderr.count("\n") == 1
