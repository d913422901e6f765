"""Reinforcement learning on CartPole: workers play, a learner improves the policy.

Rank 0 is the learner, all other ranks are workers. In iteration i the learner sends message i of
the stream "weights"; each worker plays its episodes of that iteration and sends each as a message
of the stream "rollouts"; the learner consumes them worker by worker and takes one step of policy
gradient. Every random number is a function of (seed, worker, message), so the final weights have
the same bits whatever the timing and however many ranks died on the way.

    ftrt run -n 4 --spares 1 --fault kill:1@200msg apps/rollout.py
"""

import os

# The number of BLAS threads changes the order of sums, and with it the last bits of the weights.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import hashlib  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import click  # noqa: E402
import numpy as np  # noqa: E402

import ftrt  # noqa: E402
from ftrt.oracle import Effects  # noqa: E402

LEARNER = 0
MAX_STEPS = 500  # where CartPole-v1 ends an episode
DISCOUNT = 0.99
SLOT_BYTES = 16 * 1024  # the longest episode has 500 steps of 6 float32: 12,000 bytes
BARS = "▁▂▃▄▅▆▇█"
CURVE_COLUMNS = 75


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    iterations: int = 150
    episodes: int = 4
    hidden: int = 16
    lr: float = 0.02
    seed: int = 0
    effects: str | None = None
    quiet: bool = False


# ---------------------------------------------------------------------------- policy


def split(weights):
    """Return views (w1, b1, w2, b2) of a flat vector of weights.

    Parameters
    ----------
    weights : numpy.ndarray
        Float64, shape (6 * hidden + 1,).
    """
    hidden = (len(weights) - 1) // 6
    w1 = weights[: 4 * hidden].reshape(4, hidden)
    b1, w2 = weights[4 * hidden : -1].reshape(2, hidden)
    return w1, b1, w2, weights[-1:]


def first_weights(options):
    """Return the weights that training starts from."""
    rng = np.random.default_rng([options.seed, 0])
    weights = np.zeros(6 * options.hidden + 1)
    w1, _, w2, _ = split(weights)
    w1[:] = rng.normal(scale=0.5, size=w1.shape)
    w2[:] = rng.normal(scale=0.1, size=w2.shape)
    return weights


def play(env, weights, key):
    """Play one episode.

    Parameters
    ----------
    env : gymnasium.Env
        CartPole-v1.
    weights : numpy.ndarray
        Flat weights of the policy.
    key : list of int
        What all randomness of the episode is derived from.

    Returns
    -------
    numpy.ndarray
        Float32, shape (steps, 6): observation, action, reward.
    """
    rng = np.random.default_rng(key)
    w1, b1, w2, b2 = split(weights)
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    # The action is 1 with probability sigmoid(logit): compare the logit with a logistic draw.
    draws = rng.logistic(size=MAX_STEPS).tolist()
    bias = float(b2[0])
    rows = []
    for draw in draws:
        action = int(np.tanh(obs @ w1 + b1) @ w2 + bias > draw)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((*obs, action, reward))
        obs = after
        if terminated or truncated:
            break
    return np.array(rows, dtype=np.float32)


def discounted(rewards):
    """Return, for every step, the discounted sum of the rewards from there on."""
    returns = np.empty(len(rewards))
    total = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        returns[step] = total = rewards[step] + DISCOUNT * total
    return returns


def gradients(weights, episode, returns):
    """Return the policy gradient weighted by the returns, and the one weighted by one.

    With both sums the returns can be normalised after the last episode of the iteration, when
    their mean and deviation are known, without keeping the episodes.
    """
    w1, b1, w2, b2 = split(weights)
    obs = episode[:, :4].astype(np.float64)
    hidden = np.tanh(obs @ w1 + b1)
    error = episode[:, 4] - 1 / (1 + np.exp(-(hidden @ w2 + b2)))
    both = []
    for scale in (returns, 1.0):
        out = error * scale
        inner = out[:, None] * w2 * (1 - hidden**2)
        parts = obs.T @ inner, inner.sum(axis=0), hidden.T @ out, out.sum()
        both.append(np.concatenate([np.ravel(part) for part in parts]))
    return both


# ---------------------------------------------------------------------------- learner


class Learner:
    """All that the learner knows, in three arrays that are committed with what they come from.

    Attributes
    ----------
    policy : numpy.ndarray
        Shape (3, n): the weights and the two moments of Adam.
    partial : numpy.ndarray
        Shape (2, n): the sums of gradients over the episodes consumed in this iteration.
    counts : numpy.ndarray
        Iterations done; then of this iteration the episodes, the steps, the sum of the returns,
        and the sum of their squares.
    curve : numpy.ndarray
        The mean length of an episode in each iteration.
    """

    KEYS = ("policy", "partial", "counts", "curve")

    def __init__(self, options, state=None):
        self.options = options
        if state:
            for key in self.KEYS:
                setattr(self, key, np.array(state[key]))
            return
        weights = first_weights(options)
        self.policy = np.stack([weights, np.zeros_like(weights), np.zeros_like(weights)])
        self.partial = np.zeros((2, len(weights)))
        self.counts = np.zeros(5)
        self.curve = np.zeros(options.iterations)

    @property
    def weights(self):
        """The current weights, flat float64."""
        return self.policy[0]

    def next_episode(self, workers):
        """Return (iteration, worker) of the next episode to consume, both from 1."""
        worker = int(self.counts[1]) // self.options.episodes + 1
        if worker > workers:
            raise ValueError("the state belongs to a run with more workers or episodes")
        return int(self.counts[0]) + 1, worker

    def add(self, episode, last):
        """Add one episode; take a step if it is the last one of its iteration."""
        returns = discounted(episode[:, 5].astype(np.float64))
        self.partial += gradients(self.weights, episode, returns)
        self.counts[1:] += 1, len(episode), returns.sum(), (returns**2).sum()
        if last:
            self._step()

    def commit(self, effect):
        """Hand the state to an effect."""
        for key in self.KEYS:
            effect[key] = getattr(self, key)

    def _step(self):
        """Take one step of Adam along the gradient for normalised returns."""
        done, episodes, steps, total, squares = self.counts
        mean = total / steps
        deviation = np.sqrt(max(squares / steps - mean**2, 0.0)) + 1e-6
        gradient = (self.partial[0] - mean * self.partial[1]) / (deviation * steps)
        weights, first, second = self.policy
        first += 0.1 * (gradient - first)
        second += 0.01 * (gradient**2 - second)
        # The rate falls towards the end, so that the last iterations do not undo what was learnt.
        size = self.options.lr * (1 - 0.9 * done / self.options.iterations)
        size *= np.sqrt(1 - 0.99 ** (done + 1)) / (1 - 0.9 ** (done + 1))
        weights += size * first / (np.sqrt(second) + 1e-8)
        self.curve[int(done)] = steps / episodes
        self.partial[:] = 0
        self.counts[:] = done + 1, 0, 0, 0, 0


def learn(rt, options):
    """Be the learner: send weights, consume episodes, until all iterations are done."""
    workers = range(1, rt.size)
    learner = Learner(options, rt.restore())
    sources = {worker: rt.receiver("rollouts", source=worker) for worker in workers}
    with (
        Effects(options.effects, rt.rank) as effects,
        rt.sender("weights", to=list(workers), spool=True) as out,
    ):
        while learner.counts[0] < options.iterations:
            iteration, worker = learner.next_episode(len(workers))
            # After a death the message of this iteration may be out already.
            if out.next_seq == iteration:
                out.send(learner.weights)
            message = next(sources[worker])
            last = learner.counts[1] + 1 == len(workers) * options.episodes
            effects.begin(message.stream, message.source, message.seq)
            with message.consume() as effect:
                learner.add(message.array, last)
                learner.commit(effect)
            effects.committed(message.stream, message.source, message.seq)
            if last:
                rt.progress(iteration, options.iterations)
            if last and iteration % 10 == 0 and not options.quiet:
                show_progress(learner.curve, iteration)
    report(learner, options)


def show_progress(curve, iteration):
    """Print one row of the learning curve."""
    mean = curve[iteration - 10 : iteration].mean()
    print(f"iteration {iteration:4d}  mean return {mean:6.1f}", flush=True)


def report(learner, options):
    """Print the learning curve and, as the last line, the digest of the weights."""
    if not options.quiet:
        parts = np.array_split(learner.curve, min(len(learner.curve), CURVE_COLUMNS))
        means = np.array([part.mean() for part in parts])
        heights = np.minimum(means / MAX_STEPS * len(BARS), len(BARS) - 1).astype(int)
        print("".join(BARS[height] for height in heights))
        print(f"mean return of the last five iterations {learner.curve[-5:].mean():.1f}")
    print(f"digest {hashlib.sha256(learner.weights.tobytes()).hexdigest()}", flush=True)


# ---------------------------------------------------------------------------- worker


class Player:
    """Makes message after message of a worker from the weights it has committed.

    Episodes of iteration i can be asked for until the learner has them all, and by then it may
    have sent the weights of i + 1. So the weights of two iterations are kept, by their parity.
    """

    def __init__(self, rank, options, state=None):
        import gymnasium  # slow to import, and the learner has no use for it

        self.rank, self.options = rank, options
        self.env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        self.weights = {}  # iteration: flat weights
        for row in (state or {}).values():
            self.weights[int(row[0])] = np.array(row[1:])

    def accept(self, iteration, weights, effect):
        """Take the weights of an iteration and hand them to an effect."""
        effect[f"weights{iteration % 2}"] = np.concatenate([[iteration], weights])
        self.weights.pop(iteration - 2, None)
        self.weights[iteration] = np.array(weights)

    def due(self):
        """Return the last message that the weights received so far call for."""
        return max(self.weights, default=0) * self.options.episodes

    def make(self, seq):
        """Return message `seq` of this worker: one episode, as `play` returns it."""
        iteration = (seq - 1) // self.options.episodes + 1
        key = [self.options.seed, self.rank, seq]
        return play(self.env, self.weights[iteration], key)


def work(rt, options):
    """Be a worker: play with each set of weights, until the learner closes its stream."""
    player = Player(rt.rank, options, rt.restore())
    with (
        Effects(options.effects, rt.rank) as effects,
        rt.sender(
            "rollouts",
            to=LEARNER,
            replay=player.make,
            slot_bytes=SLOT_BYTES,
            window=2 * options.episodes,
        ) as out,
    ):
        # A predecessor may have died between consuming weights and sending all their episodes.
        send_due(out, player)
        for message in rt.receiver("weights", source=LEARNER):
            effects.begin(message.stream, message.source, message.seq)
            with message.consume() as effect:
                player.accept(message.seq, message.array, effect)
            effects.committed(message.stream, message.source, message.seq)
            send_due(out, player)


def send_due(out, player):
    """Send every episode that is due and that nobody has yet."""
    for seq in range(out.next_seq, player.due() + 1):
        out.send(player.make(seq))


def expected_effects(size, options):
    """Return what `ftrt.oracle.check_effects` expects of a complete run with `size` ranks."""
    expected = {}
    for worker in range(1, size):
        expected[worker, "weights", LEARNER] = options.iterations
        expected[LEARNER, "rollouts", worker] = options.iterations * options.episodes
    return expected


@click.command(help=__doc__.partition("\n")[0])
@click.option("--iterations", type=click.IntRange(1), default=Options.iterations, show_default=True)
@click.option(
    "--episodes",
    type=click.IntRange(1),
    default=Options.episodes,
    show_default=True,
    help="Episodes of each worker in an iteration.",
)
@click.option("--hidden", type=click.IntRange(1), default=Options.hidden, show_default=True)
@click.option("--lr", type=float, default=Options.lr, show_default=True, help="Learning rate.")
@click.option("--seed", type=click.IntRange(0), default=0, envvar="FTRT_SEED", show_default=True)
@click.option("--effects", metavar="DIR", help="Record each effect in a file in DIR.")
@click.option("--quiet", is_flag=True, help="Print the digest only.")
def main(**options):
    """Run this rank to its end."""
    with ftrt.init() as rt:
        if rt.size < 2:
            raise click.UsageError("a learner needs a worker: start it with -n 2 or more")
        (learn if rt.rank == LEARNER else work)(rt, Options(**options))


if __name__ == "__main__":
    main()
