"""The two ranks of the transformer against one process that keeps no cache."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import kvcache
import numpy as np
import pytest
from click.testing import CliRunner
from fake_runtime import Cluster

from ftrt.oracle import check_effects

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from runtime_job import ROOT, run_job

# Few positions, but prompts of one to three blocks a layer, and batches that end inside of one.
SMALL = kvcache.Options(
    requests=5, prompt=40, tokens=6, layers=2, heads=2, vocabulary=32, quiet=True
)
# As much as a job needs for its batches to end in different places of a prompt.
JOB = kvcache.Options(requests=12, prompt=100, tokens=12)
JOB_ARGUMENTS = ["--requests", 12, "--prompt", 100, "--tokens", 12]


def alone(options):
    """Return the tokens that one process generates: all positions anew for each token."""
    plan, model = kvcache.Plan(options), kvcache.Transformer(options)
    tokens = []
    for prompt in plan.prompts:
        text = [int(token) for token in prompt]
        for _ in range(options.tokens):
            cache = model.empty_cache(len(text))
            text.append(int(model.run(text, cache, 0).argmax()))
        tokens.append(text[-options.tokens :])
    return np.array(tokens, np.int32)


def digest_of(tokens, capsys):
    """Return the digest that the app prints for these tokens."""
    plan = kvcache.Plan(SMALL)
    decoder = kvcache.Decode(plan, kvcache.Transformer(SMALL), SMALL)
    decoder.tokens = tokens
    kvcache.report(decoder, plan, SMALL)
    return last_word(capsys)


def last_word(capsys):
    *_, last = capsys.readouterr().out.splitlines()
    word, value = last.split()
    assert word == "digest" and len(value) == 64
    return value


def digest(capsys, options=SMALL, die=()):
    """Run the app; return its digest and the number of deaths."""
    cluster = Cluster(2, die)
    cluster.run(lambda rt: kvcache.run(rt, options))
    return last_word(capsys), cluster.deaths


def attached(options, change=lambda seq, block: block):
    """Return what was generated from blocks as they were changed on their way."""
    plan, model = kvcache.Plan(options), kvcache.Transformer(options)
    maker, decoder = kvcache.Prefill(plan, model), kvcache.Decode(plan, model, options)
    for seq in range(1, plan.total + 1):
        decoder.add(seq, change(seq, maker.make(seq)), {})
    return decoder


def test_two_ranks_generate_what_one_process_does(capsys):
    assert digest(capsys) == (digest_of(alone(SMALL), capsys), 0)


@pytest.mark.parametrize("victim", [kvcache.PREFILL, kvcache.DECODE])
def test_a_death_at_any_step_changes_no_token(capsys, tmp_path, victim):
    whole, _ = digest(capsys)
    total = kvcache.Plan(SMALL).total
    for step in range(1, 2 * total + 1):
        options = replace(SMALL, effects=str(tmp_path / str(step)))
        assert digest(capsys, options, {(victim, step)}) == (whole, 1), f"step {step}"
        found = check_effects(options.effects, kvcache.expected_effects(2, options))
        assert (found["losses"], found["duplicates"]) == ([], []), f"step {step}"


@pytest.mark.parametrize("seed", range(3))
def test_many_deaths_change_no_token(capsys, seed):
    rng, steps = random.Random(seed), 2 * kvcache.Plan(SMALL).total
    die = {(rank, rng.randint(1, steps)) for rank in range(2) for _ in range(6)}
    whole, _ = digest(capsys)
    assert digest(capsys, die=die) == (whole, len(die))


def test_the_text_depends_on_the_blocks():
    whole, total = attached(SMALL).tokens, kvcache.Plan(SMALL).total
    noticed = 0
    for victim in range(1, total + 1):
        tokens = attached(SMALL, lambda seq, block, v=victim: block * (seq != v)).tokens
        noticed += not np.array_equal(tokens, whole)
    assert noticed >= 0.75 * total


def test_no_choice_is_close_at_the_defaults():
    """So other orders of sums, as on a GPU, make the same text."""
    decoder = attached(kvcache.Options())
    assert decoder.margin > 10 * kvcache.SAFE_MARGIN
    assert len(np.unique(decoder.tokens)) > 100


def test_sums_in_another_order_make_the_same_text():
    class Backwards(kvcache.Transformer):
        """Adds up positions in the opposite order."""

        def _attend(self, queries, kept):
            count, end = queries.shape[1], kept.shape[2]
            if count > 1:
                return super()._attend(queries, kept)
            return super()._attend(queries, kept[:, :, np.arange(end)[::-1]])

    plan, other = kvcache.Plan(SMALL), Backwards(SMALL)
    decoder, maker = kvcache.Decode(plan, other, SMALL), kvcache.Prefill(plan, other)
    for seq in range(1, plan.total + 1):
        decoder.add(seq, maker.make(seq), {})
    assert np.array_equal(decoder.tokens, attached(SMALL).tokens)


def test_every_block_has_one_place():
    plan = kvcache.Plan(SMALL)
    places = [plan.place(seq) for seq in range(1, plan.total + 1)]
    positions = [(request, *plan.position(request, page)) for request, page in places]
    assert len(set(positions)) == plan.total and positions == sorted(positions)
    for request, prompt in enumerate(plan.prompts):
        starts = [at for other, layer, at in positions if (other, layer) == (request, 0)]
        assert starts == list(range(0, len(prompt) - 1, kvcache.BLOCK))


@pytest.mark.parametrize(
    "plane, fault",
    [
        ("host", None),
        ("host", "kill:0@150msg"),
        ("host", "kill:1@150msg"),
        ("mpi", "kill:1@77msg"),
        ("fake", "kill:1@150msg"),
    ],
)
def test_a_real_death_changes_no_token(tmp_path, capsys, plane, fault):
    effects = tmp_path / "effects"
    options = ["-n", 2, "--spares", 1, *(["--fault", fault] if fault else [])]
    options += ["--plane", "nccl"] if plane == "fake" else []
    env = {"FTRT_SHM": "0"} if plane == "mpi" else {}
    if plane == "fake":
        env = {"FTRT_NCCL_LIBRARY": "fake", "FTRT_FAKE_GPUS": "2"}
    arguments = [*JOB_ARGUMENTS, "--effects", effects]
    app = ROOT / "apps" / "kvcache.py"
    ended = run_job(tmp_path, options, app, *arguments, env=env)
    assert ended.status == 0, ended.output
    assert len(ended.report["recoveries"]) == bool(fault)
    audit, total = ended.report["audit"], kvcache.Plan(JOB).total
    assert audit["sent"] == audit["consumed"] == total
    assert (audit["losses"], audit["duplicates"], audit["open"]) == (0, 0, 0)
    found = check_effects(effects, kvcache.expected_effects(2, JOB))
    assert (found["losses"], found["duplicates"]) == ([], [])
    assert ended.report["digest"] == digest_of(alone(JOB), capsys)


def test_another_number_of_ranks_is_refused(monkeypatch):
    monkeypatch.setattr(kvcache.ftrt, "init", lambda: Cluster(3).runtime(0), raising=False)
    result = CliRunner().invoke(kvcache.main, [])
    assert result.exit_code == 2 and "start it with -n 2" in result.output
