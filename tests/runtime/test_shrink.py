"""When the spares are used up: everybody knows, the job shrinks where it may, and grows back."""

import json
from pathlib import Path

import pytest
from runtime_job import run_job

HERE = Path(__file__).parent


LONG = pytest.mark.long


@pytest.mark.parametrize("fault", [pytest.param("kill:1@40msg", marks=LONG), "kill:0@40msg"])
def test_everybody_knows_when_the_last_spare_is_used(tmp_path, fault):
    ended = run_job(
        tmp_path, ["-n", 2, "--spares", 1, "--fault", fault], HERE / "depleted_program.py"
    )
    assert ended.status == 0, ended.output
    (event,) = ended.named("depleted")
    assert "the next death of a rank ends this attempt" in event["reason"]
    (recovery,) = ended.named("recovery")
    assert event["t"] <= recovery["t"]
    assert "no spare is left" in ended.output
    for rank in (0, 1):
        (line,) = [x for x in ended.output.splitlines() if x.startswith(f"rank {rank} began")]
        assert line.endswith("told [0], now 0")


PROGRAM, POLICIES = HERE / "shrink_program.py", HERE / "policies.py"


def shrink_job(directory, faults, ranks=4, least=2, messages=300, **more):
    """Nothing is lost or doubled, by the audit, the oracle and the closed form."""
    options = ["-n", ranks, "--min-ranks", least, *more.get("options", [])]
    for fault in faults:
        options += ["--fault", fault]
    effects, fan = directory / "effects", more.get("fan", "out")
    arguments = ["--messages", messages, "--effects", effects, "--fan", fan]
    arguments += more.get("arguments", [])
    ended = run_job(directory, options, PROGRAM, *arguments, env=more.get("env"))
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert audit["ok"] and audit["sent"] == audit["consumed"] == messages * (ranks - 1)
    found = dict(effects_by_seat(effects))
    want = [(f"numbers@{r}", 0) if fan == "out" else ("numbers@0", r) for r in range(1, ranks)]
    for stream, source in want:
        seqs = found.pop((stream, source))
        assert len(seqs) == len(set(seqs)), "the oracle has an effect twice"
        # Each death may take one line with it, between the commit and what the oracle is told.
        assert messages - len(seqs) <= len(ended.named("died"))
    assert not found
    for rank in range(ranks):
        if (rank == 0) == (fan == "in"):
            assert f"rank {rank} is right" in ended.output
    return ended


def effects_by_seat(directory):
    """What was committed of each (stream, source), whoever did it."""
    found = {}
    for path in directory.iterdir():
        for line in path.read_text().split("\n")[:-1]:
            what, stream, source, seq = line.split()
            if what == "C":
                found.setdefault((stream, int(source)), []).append(int(seq))
    return found


@pytest.mark.parametrize(
    "env", [{}, pytest.param({"FTRT_SHM": "0"}, marks=LONG)], ids=["shared memory", "MPI"]
)
def test_a_consumers_streams_go_to_one_that_is_left(tmp_path, env):
    ended = shrink_job(tmp_path, ["kill:3@100msg"], env=env)
    assert ended.report["outcome"] == "shrunk" and "3 of 4 are left" in ended.output
    (event,) = ended.named("shrunk")
    assert event["rank"] == 3 and event["heir"] in (1, 2)
    assert ended.report["shrunk"][0]["heir"] == event["heir"]
    record = last_record(ended)
    assert record["inherited"] == [[3, event["heir"]]]


def last_record(ended):
    paths = sorted((ended.ledger / "epochs").glob("*.json"))
    return json.loads(paths[-1].read_text())


@pytest.mark.parametrize(
    "more", [["--spool"], pytest.param([], marks=LONG)], ids=["spool", "replay"]
)
def test_a_senders_streams_are_sent_on_by_one_that_is_left(tmp_path, more):
    ended = shrink_job(tmp_path, ["kill:2@100msg"], fan="in", arguments=more)
    (event,) = ended.named("shrunk")
    assert event["heir"] in (1, 3)


@LONG
def test_what_an_effect_left_is_there_at_class_power_too(tmp_path):
    shrink_job(tmp_path, ["kill:3@100msg"], options=["--stable", "power"])


@LONG
@pytest.mark.parametrize("fan", ["out", "in"])
def test_batches(tmp_path, fan):
    shrink_job(tmp_path, ["kill:3@100msg"], fan=fan, arguments=["--batch", 16])


@LONG
@pytest.mark.parametrize("at", [299, 300])
@pytest.mark.parametrize("fan", ["out", "in"])
def test_a_death_at_the_end_of_the_work(tmp_path, fan, at):
    ended = shrink_job(tmp_path, [f"kill:3@{at}msg"], fan=fan, arguments=["--delay-us", 100])
    assert ended.named("shrunk")


@LONG
def test_a_program_that_could_shrink_runs_as_ever_where_it_may_not(tmp_path):
    ended = shrink_job(tmp_path, ["kill:3@100msg"], least=0, options=["--spares", 1])
    assert ended.report["outcome"] == "continued" and not ended.named("shrunk")


@LONG
def test_two_die_at_once(tmp_path):
    ended = shrink_job(tmp_path, ["kill:2@100msg", "kill:3@100msg"], ranks=5)
    assert {event["rank"] for event in ended.named("shrunk")} == {2, 3}


def test_spares_first_then_heirs_then_heirs_of_heirs(tmp_path):
    faults = ["kill:3@60msg", "kill:2@120msg", "kill:1@200msg"]
    ended = shrink_job(tmp_path, faults, ranks=5, options=["--spares", 1])
    assert len(ended.named("depleted")) == 1 and len(ended.named("promoted")) == 1
    assert "--min-ranks" in ended.named("depleted")[0]["reason"]
    assert len(ended.named("shrunk")) >= 2 and ended.report["outcome"] == "shrunk"
    assert len({p["process"] for p in last_record(ended)["members"]}) == 3


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=LONG)])
def test_a_death_during_the_shrink(tmp_path, victim):
    """One of these would be the heir of rank 3, and dies while the ledgers are closed."""
    ended = shrink_job(tmp_path, ["kill:3@100msg", f"kill:{victim}@recovery"])
    assert {event["rank"] for event in ended.named("shrunk")} == {3, victim}
    assert len({p["process"] for p in last_record(ended)["members"]}) == 2


@LONG
def test_a_policy_chooses(tmp_path):
    policy = ["--heirs", f"{POLICIES}:lowest"]
    ended = shrink_job(tmp_path, ["kill:3@100msg", "kill:2@150msg"], options=policy)
    assert [event["heir"] for event in ended.named("shrunk")] == [1, 1]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        pytest.param("a_dead_one", "gives rank 3 to rank 3, which is dead", marks=LONG),
        pytest.param("raises", "raised ValueError: I cannot choose", marks=LONG),
        pytest.param("hangs", "did not answer within 1 s", marks=LONG),
        pytest.param("leaves", "ended its process", marks=LONG),
        pytest.param("nonsense", "raised TypeError", marks=LONG),
    ],
)
def test_a_bad_policy_is_refused_and_the_job_begins_again_from_the_ledger(tmp_path, policy, says):
    options = ["--heirs", f"{POLICIES}:{policy}", "--restarts", 1]
    ended = shrink_job(tmp_path, ["kill:3@100msg"], options=options)
    assert ended.report["attempts"] == 2 and ended.report["outcome"] == "restarted"
    (failure,) = ended.named("failed")
    assert "rank 3 died and the policy for heirs " in failure["reason"]
    assert says in failure["reason"]


def test_a_bad_policy_without_restarts_is_a_named_end(tmp_path):
    options = ["-n", 3, "--min-ranks", 2, "--heirs", f"{POLICIES}:a_dead_one"]
    ended = run_job(tmp_path, [*options, "--fault", "kill:2@50msg"], PROGRAM)
    assert ended.status == 3 and "gives rank 2 to rank 2, which is dead" in ended.output
    assert ended.report["outcome"] == "failed"


@LONG
@pytest.mark.parametrize(
    ("options", "arguments", "says"),
    [
        (["--min-ranks", 2], ["--alone"], "no rank that is left takes over another's streams"),
        ([], [], "died and no spare is left"),
    ],
    ids=["the program does not", "nobody asked"],
)
def test_a_job_that_may_not_shrink_does_not(tmp_path, options, arguments, says):
    ended = run_job(tmp_path, ["-n", 3, *options, "--fault", "kill:2@50msg"], PROGRAM, *arguments)
    assert ended.status == 3 and says in ended.output, ended.output


@LONG
def test_it_shrinks_no_further_than_it_may(tmp_path):
    faults = ["--fault", "kill:2@50msg", "--fault", "kill:3@90msg"]
    ended = run_job(tmp_path, ["-n", 4, "--min-ranks", 3, *faults], PROGRAM)
    assert ended.status == 3 and "2 would be left, fewer than the 3 of --min-ranks" in ended.output


@LONG
def test_the_only_senders_death_is_a_named_end(tmp_path):
    ended = run_job(tmp_path, ["-n", 3, "--min-ranks", 1, "--fault", "kill:0@50msg"], PROGRAM)
    assert ended.status == 3 and "rank 0 has no heir" in ended.output, ended.output


@LONG
def test_a_restart_after_a_shrink_grows_back(tmp_path):
    """The second attempt has a process for each rank again, with the state that the heir left."""
    faults = ["kill:3@60msg", "kill:0@200msg"]
    ended = shrink_job(tmp_path, faults, options=["--restarts", 1])
    assert ended.report["attempts"] == 2 and ended.named("shrunk")
    assert ended.report["outcome"] == "restarted"
    assert last_record(ended)["inherited"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--min-ranks", 9], "--min-ranks 9: use 1 to 3"),
        (["--min-ranks", -1], "--min-ranks must be at least 1"),
        (["--heirs", f"{POLICIES}:lowest"], "it needs --min-ranks"),
        (["--min-ranks", 2, "--heirs", "nowhere.py:f"], "there is no file"),
        (["--min-ranks", 2, "--heirs", "lowest"], "write FILE.py:FUNCTION"),
    ],
)
def test_what_cannot_work_is_refused_at_once(tmp_path, options, says):
    ended = run_job(tmp_path, ["-n", 3, *options], PROGRAM)
    assert ended.status == 2 and says in ended.output, ended.output


@LONG
def test_a_policy_that_cannot_be_loaded_is_told_at_the_start(tmp_path):
    options = ["-n", 3, "--min-ranks", 2, "--heirs", f"{POLICIES}:nobody"]
    ended = run_job(tmp_path, options, PROGRAM)
    assert ended.status == 3 and "cannot be loaded" in ended.output, ended.output


@LONG
def test_the_program_of_the_readme(tmp_path):
    section = (HERE.parents[1] / "README.md").read_text().partition("## When the spares")[2]
    program = tmp_path / "shares.py"
    program.write_text(section.partition("```python\n")[2].partition("```")[0])
    options = ["-n", 4, "--min-ranks", 2, "--fault", "kill:3@40msg"]
    ended = run_job(tmp_path, options, program)
    assert ended.status == 0 and ended.report["outcome"] == "shrunk", ended.output
    for rank in (1, 2, 3):
        assert f"rank {rank} total 80400" in ended.output
