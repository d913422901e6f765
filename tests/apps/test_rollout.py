"""The rollout app: the same bits whoever dies, and it learns."""

import random
import threading
import types
from dataclasses import replace

import numpy as np
import pytest
import rollout
from click.testing import CliRunner
from fake_runtime import Cluster

from ftrt.oracle import check_effects

pytest.importorskip("gymnasium")

SMALL = rollout.Options(iterations=3, episodes=2, hidden=4, quiet=True)
SIZE = 3


def act(rt, options):
    (rollout.learn if rt.rank == 0 else rollout.work)(rt, options)


def digest(capsys, options=SMALL, die=(), size=SIZE):
    """Run the app; return its digest and the number of deaths."""
    cluster = Cluster(size, die)
    cluster.run(lambda rt: act(rt, options))
    *_, last = capsys.readouterr().out.splitlines()
    word, value = last.split()
    assert word == "digest" and len(value) == 64
    return value, cluster.deaths


def steps(rank):
    """How many steps a rank passes: two for each message it sends or consumes."""
    episodes = SMALL.iterations * SMALL.episodes
    return 2 * (SMALL.iterations + (episodes * (SIZE - 1) if rank == 0 else episodes))


@pytest.mark.parametrize("victim", range(SIZE))
def test_a_death_at_any_step_changes_no_bit(capsys, tmp_path, victim):
    whole, _ = digest(capsys)
    for step in range(1, steps(victim) + 1):
        options = replace(SMALL, effects=str(tmp_path / str(step)))
        assert digest(capsys, options, {(victim, step)}) == (whole, 1), f"rank {victim} step {step}"
        found = check_effects(options.effects, rollout.expected_effects(SIZE, options))
        assert (found["losses"], found["duplicates"]) == ([], []), f"rank {victim} step {step}"


@pytest.mark.parametrize("seed", range(5))
def test_many_deaths_change_no_bit(capsys, seed):
    rng = random.Random(seed)
    die = {(rank, rng.randint(1, steps(rank))) for rank in range(SIZE) for _ in range(4)}
    whole, _ = digest(capsys)
    found, deaths = digest(capsys, die=die)
    assert found == whole and deaths == len(die)


def test_the_seed_decides_the_digest(capsys):
    assert digest(capsys, replace(SMALL, seed=1)) != digest(capsys, SMALL)


def test_the_gradient_is_the_derivative_of_the_log_probability():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=6 * 3 + 1)
    episode = rng.normal(size=(7, 6)).astype(np.float32)
    episode[:, 4] = rng.integers(2, size=7)
    returns = rng.normal(size=7)

    def objective(weights):
        w1, b1, w2, b2 = rollout.split(weights)
        logits = np.tanh(episode[:, :4].astype(float) @ w1 + b1) @ w2 + b2
        sign = np.where(episode[:, 4] == 1, 1, -1)
        return (returns * -np.log1p(np.exp(-sign * logits))).sum()

    found, _ = rollout.gradients(weights, episode, returns)
    shifts = np.eye(len(weights)) * 1e-6
    expected = [(objective(weights + d) - objective(weights - d)) / 2e-6 for d in shifts]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_discounted_returns():
    expected = [1 + 0.99 + 0.99**2, 1.99, 1.0]
    np.testing.assert_allclose(rollout.discounted([1.0, 1.0, 1.0]), expected)


def test_a_state_of_a_larger_run_is_refused():
    learner = rollout.Learner(SMALL)
    learner.counts[1] = 2 * SMALL.episodes
    with pytest.raises(ValueError, match="more workers"):
        learner.next_episode(workers=2)


def test_it_learns():
    options = replace(SMALL, iterations=80, hidden=16, episodes=4, lr=0.03)
    learner, players = rollout.Learner(options), [rollout.Player(w, options) for w in (1, 2, 3)]
    for iteration in range(1, options.iterations + 1):
        for player in players:
            player.accept(iteration, learner.weights, {})
            for extra in range(options.episodes):
                seq = player.due() - extra
                last = player is players[-1] and extra == options.episodes - 1
                learner.add(player.make(seq), last)
    assert learner.curve[-5:].mean() >= 400


def test_the_command_plays_the_part_of_its_rank(capsys, monkeypatch):
    arguments = ["--iterations", "10", "--episodes", "1", "--hidden", "4", "--seed", "2"]
    local = threading.local()
    monkeypatch.setattr(rollout.ftrt, "init", lambda: local.rt, raising=False)

    def command(rt):
        local.rt = rt
        rollout.main(arguments, standalone_mode=False)

    Cluster(2).run(command)
    row, curve, mean, last = capsys.readouterr().out.splitlines()
    assert row.startswith("iteration   10  mean return")
    assert len(curve) == 10 and set(curve) <= set(rollout.BARS)
    assert mean.startswith("mean return of the last five iterations")
    assert last.startswith("digest ")


@pytest.mark.parametrize("iterations", [1, 74, 75, 76, 150, 1000])
def test_the_curve_fits_80_columns(capsys, iterations):
    learner = types.SimpleNamespace(
        curve=np.linspace(0, rollout.MAX_STEPS, iterations), weights=np.zeros(1)
    )
    rollout.report(learner, rollout.Options())
    curve = capsys.readouterr().out.splitlines()[0]
    assert len(curve) == min(iterations, 75) and curve[0] == "▁"
    assert list(curve) == sorted(curve) and (iterations == 1 or curve[-1] == "█")


def test_the_seed_comes_from_the_environment(monkeypatch):
    seen = []
    monkeypatch.setattr(rollout.ftrt, "init", lambda: Cluster(2).runtime(1), raising=False)
    monkeypatch.setattr(rollout, "work", lambda rt, options: seen.append(options.seed))
    monkeypatch.setenv("FTRT_SEED", "7")
    rollout.main([], standalone_mode=False)
    rollout.main(["--seed", "3"], standalone_mode=False)
    assert seen == [7, 3]


def test_one_rank_alone_is_refused(monkeypatch):
    monkeypatch.setattr(rollout.ftrt, "init", lambda: Cluster(1).runtime(0), raising=False)
    result = CliRunner().invoke(rollout.main, [])
    assert result.exit_code == 2 and "needs a worker" in result.output
