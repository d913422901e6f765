"""A transformer generates text on two ranks: one reads the prompts, the other one writes on.

Rank 0 (prefill) runs each prompt through the model and streams what attention needs of it, the
keys and values, in blocks of 16 positions of one layer. Rank 1 (decode) attaches the blocks, and
generates greedily as soon as a prompt is complete. The model is small and its weights are random
numbers of the seed: the text means nothing, but it depends on nearly every block, and on its place.

    ftrt run -n 2 --spares 1 --fault kill:1@500msg apps/kvcache.py

All sums are made in double precision and rounded to single precision after each layer, so their
order, which is another one on a GPU, does not reach the tokens.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import hashlib  # noqa: E402
import importlib  # noqa: E402
from bisect import bisect_right  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from itertools import accumulate  # noqa: E402

import click  # noqa: E402
import numpy as np  # noqa: E402

import ftrt  # noqa: E402
from ftrt.oracle import Effects  # noqa: E402

PREFILL, DECODE = 0, 1
STREAM = "blocks"
BLOCK = 16  # positions of a block
BATCH = 16  # blocks of a send
HEAD = 16  # width of an attention head
SHORTEST = 8  # tokens of a prompt, at least
RECENT = 4  # prompts whose blocks the prefill rank keeps, to send some of them again
#: Logits closer than this could be told apart differently by another array module.
SAFE_MARGIN = 1e-5


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    requests: int = 48
    prompt: int = 160
    tokens: int = 32
    layers: int = 4
    heads: int = 4
    vocabulary: int = 256
    seed: int = 0
    effects: str | None = None
    quiet: bool = False

    @property
    def width(self):
        """Width of the model."""
        return self.heads * HEAD


# ---------------------------------------------------------------------------- plan


class Plan:
    """The prompts, and which block of which prompt each message carries.

    Blocks go request by request, layer by layer, front to back. The last token of a prompt has no
    place in them: it is the first one that the decode rank runs through the model.
    """

    def __init__(self, options):
        rng = np.random.default_rng([options.seed, 1])
        lengths = rng.integers(SHORTEST, max(SHORTEST, options.prompt) + 1, options.requests)
        self.prompts = [rng.integers(options.vocabulary, size=length) for length in lengths]
        self.layers = options.layers
        #: For each prompt, how many messages come before its own; then the number of all.
        self.before = [0, *accumulate(self.pages(request) for request in range(len(lengths)))]

    @property
    def total(self):
        """Number of messages."""
        return self.before[-1]

    def per_layer(self, request):
        """Return the number of blocks of a prompt in one layer."""
        return -(-(len(self.prompts[request]) - 1) // BLOCK)

    def pages(self, request):
        """Return the number of blocks of a prompt."""
        return self.layers * self.per_layer(request)

    def place(self, seq):
        """Return the request that message `seq` belongs to, and the block's number in it."""
        request = bisect_right(self.before, seq - 1) - 1
        return request, seq - 1 - self.before[request]

    def position(self, request, page):
        """Return the layer of a block, and its first position."""
        layer, block = divmod(page, self.per_layer(request))
        return layer, block * BLOCK


# ---------------------------------------------------------------------------- model


def rounded(array):
    """Return float64 that single precision can hold."""
    return array.astype(np.float32).astype(np.float64)


class Transformer:
    """A decoder of several layers: attention with causal mask, then two dense layers with ReLU.

    Parameters
    ----------
    options : Options
    xp : module
        numpy, or one that does as numpy does.
    """

    def __init__(self, options, xp=np):
        rng, self.xp, self.heads = np.random.default_rng([options.seed, 0]), xp, options.heads
        self.layers, self.width = options.layers, options.width

        def weights(rows, columns, scale=1.0):
            drawn = rng.normal(scale=scale / np.sqrt(rows), size=(rows, columns))
            return xp.asarray(rounded(drawn))

        width = options.width
        self.embedding = weights(options.vocabulary, width, np.sqrt(options.vocabulary))
        self.words = weights(width, options.vocabulary)
        # Scaled up, so that attention chooses instead of taking the mean, and outweighs the token.
        self.blocks = [
            {
                "query": weights(width, width, 2.5),
                "key": weights(width, width, 2.5),
                "value": weights(width, width, 2.0),
                "out": weights(width, width, 2.0),
                "up": weights(width, 4 * width),
                "down": weights(4 * width, width),
            }
            for _ in range(options.layers)
        ]
        longest = max(SHORTEST, options.prompt) + options.tokens
        rates = 100.0 ** (-np.arange(width // 2) / (width // 2))
        angles = np.arange(longest)[:, None] * rates
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        self.positions = xp.asarray(rounded(positions))

    def empty_cache(self, positions):
        """Return room for keys and values: (layers, 2, heads, positions, HEAD), whole blocks."""
        size = -(-positions // BLOCK) * BLOCK
        return self.xp.zeros((self.layers, 2, self.heads, size, HEAD))

    def run(self, tokens, cache, start):
        """Run tokens through the model; their keys and values go into the cache.

        Parameters
        ----------
        tokens : sequence of int
            The tokens of positions ``start`` and following.
        cache : array
            As :meth:`empty_cache` returns it, filled up to ``start``.
        start : int

        Returns
        -------
        array
            Float64, one logit for each word of the vocabulary: what follows the last token.
        """
        end = start + len(tokens)
        x = self.embedding[self.xp.asarray(tokens)] + self.positions[start:end]
        for block, kept in zip(self.blocks, cache, strict=True):
            y = self._normalised(x)
            kept[0, :, start:end] = rounded(self._split(y @ block["key"]))
            kept[1, :, start:end] = rounded(self._split(y @ block["value"]))
            seen = self._attend(self._split(y @ block["query"]), kept[:, :, :end])
            x = rounded(x + seen @ block["out"])
            inner = self.xp.maximum(self._normalised(x) @ block["up"], 0)
            x = rounded(x + inner @ block["down"])
        return rounded(self._normalised(x[-1]) @ self.words)

    def _normalised(self, x):
        return x / self.xp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)

    def _split(self, x):
        """Return (heads, positions, HEAD) of (positions, width)."""
        return x.reshape(len(x), self.heads, HEAD).transpose(1, 0, 2)

    def _attend(self, queries, kept):
        """Return what the last positions of the cache see of it: (positions, width)."""
        keys, values = kept
        count, end = queries.shape[1], keys.shape[1]
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(HEAD)
        if count > 1:
            at = self.xp.arange(end)
            scores = self.xp.where(at > at[end - count :, None], -np.inf, scores)
        parts = self.xp.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = parts @ values / parts.sum(axis=-1, keepdims=True)
        return seen.transpose(1, 0, 2).reshape(count, self.width)


# ---------------------------------------------------------------------------- prefill


class Prefill:
    """Makes the blocks of every prompt, any number of times the same."""

    def __init__(self, plan, model):
        self.plan, self.model = plan, model
        self._recent = {}  # request: its keys and values

    def make(self, seq):
        """Return message `seq`: float32, shape (2, heads, BLOCK, HEAD)."""
        request, page = self.plan.place(seq)
        layer, at = self.plan.position(request, page)
        return self._cache(request)[layer, :, :, at : at + BLOCK].astype(np.float32)

    def make_batch(self, first, count):
        """Return so many messages from `first` on, one a row."""
        return self.model.xp.stack([self.make(seq) for seq in range(first, first + count)])

    def _cache(self, request):
        if request not in self._recent:
            prompt = self.plan.prompts[request][:-1]
            cache = self.model.empty_cache(len(prompt))
            self.model.run(prompt, cache, 0)
            if len(self._recent) == RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[request] = cache
        return self._recent[request]


def prefill(rt, plan, model):
    """Be the prefill rank: send every block that the decode rank does not have."""
    maker = Prefill(plan, model)

    def make(seq):
        return rt.to_plane(maker.make(seq))

    # A slot for each block: between GPUs a batch of sixteen slots travels as one CUDA graph.
    sizes = {"slot_bytes": 2 * model.width * BLOCK * 4, "window": 4 * BATCH}
    with rt.sender(STREAM, to=DECODE, replay=make, **sizes) as out:
        while (first := out.next_seq) <= plan.total:
            count = min(BATCH, plan.total + 1 - first)
            out.send_batch(rt.to_plane(maker.make_batch(first, count)))


# ---------------------------------------------------------------------------- decode


class Decode:
    """What the decode rank knows: the blocks of the prompt under way, the tokens of those before.

    Each block is a key of the state of its own, ``page0`` and following, and the next prompt
    takes the same keys: so a commit writes one block, not all that is attached.

    Attributes
    ----------
    attached : int
        Number of the last message.
    tokens : numpy.ndarray
        Int32, shape (requests, tokens): what was generated.
    margin : float
        The smallest distance between the two best logits that any token was chosen by.
    """

    def __init__(self, plan, model, options, state=None, to_host=np.asarray):
        self.plan, self.model, self.options, self.to_host = plan, model, options, to_host
        self.attached, self.margin, self.cache = 0, float("inf"), None
        self.tokens = np.zeros((options.requests, options.tokens), np.int32)
        if not state:
            return
        self.attached = int(state["attached"][0])
        if "tokens" in state:
            self.tokens, self.margin = np.array(state["tokens"]), float(state["margin"][0])
        if self.attached < plan.total:
            request, pages = plan.place(self.attached + 1)
            for page in range(pages):
                self._attach(request, page, state[f"page{page}"])

    def add(self, seq, block, effect):
        """Attach the block of message `seq`; generate if its prompt is complete with it."""
        request, page = self.plan.place(seq)
        self._attach(request, page, block)
        self.attached = seq
        if page + 1 == self.plan.pages(request):
            self._generate(request)
            effect["tokens"], effect["margin"] = self.tokens, np.array([self.margin])
        else:
            effect[f"page{page}"] = self.to_host(block)
        effect["attached"] = np.array([seq])

    def _attach(self, request, page, block):
        if page == 0:
            longest = len(self.plan.prompts[request]) + self.options.tokens
            self.cache = self.model.empty_cache(longest)
        layer, at = self.plan.position(request, page)
        self.cache[layer, :, :, at : at + BLOCK] = self.model.xp.asarray(block)

    def _generate(self, request):
        """Fill the row of a request, each token the one with the largest logit."""
        prompt = self.plan.prompts[request]
        token = int(prompt[-1])
        for step in range(self.options.tokens):
            logits = self.to_host(self.model.run([token], self.cache, len(prompt) - 1 + step))
            second, best = np.partition(logits, -2)[-2:]
            self.margin = min(self.margin, float(best - second))
            self.tokens[request, step] = token = int(logits.argmax())


def decode(rt, plan, model, options):
    """Be the decode rank: attach all blocks, generate after every prompt."""
    decoder = Decode(plan, model, options, rt.restore(), rt.to_host)
    with Effects(options.effects, rt.rank) as effects:
        for message in rt.receiver(STREAM, source=PREFILL):
            effects.begin(message.stream, message.source, message.seq)
            with message.consume() as effect:
                block = message.array if model.xp is not np else rt.to_host(message.array)
                decoder.add(message.seq, block, effect)
            effects.committed(message.stream, message.source, message.seq)
            rt.progress(message.seq, plan.total)
    report(decoder, plan, options)


def report(decoder, plan, options):
    """Print what was done and, as the last line, the digest of the tokens."""
    if not options.quiet:
        length = sum(len(prompt) for prompt in plan.prompts)
        print(f"{options.requests} prompts of {length} tokens in {plan.total} blocks")
        print(f"{decoder.tokens.size} tokens, the closest choice by {decoder.margin:.1e}")
        if decoder.margin < SAFE_MARGIN:
            print("a choice was so close that another plane may take the other token")
    data = decoder.tokens.astype("<i4").tobytes()
    print(f"digest {hashlib.sha256(data).hexdigest()}", flush=True)


def array_module(rt):
    """Return what computes: CuPy where the plane moves its arrays, otherwise numpy."""
    package = type(rt.to_plane(np.zeros(1))).__module__.partition(".")[0]
    return importlib.import_module(package) if package == "cupy" else np


def run(rt, options):
    """Be prefill or decode, on the arrays of the plane."""
    plan = Plan(options)
    model = Transformer(options, array_module(rt))
    if rt.rank == PREFILL:
        prefill(rt, plan, model)
    else:
        decode(rt, plan, model, options)


def expected_effects(_size, options):
    """Return what `ftrt.oracle.check_effects` expects of a complete run."""
    return {(DECODE, STREAM, PREFILL): Plan(options).total}


@click.command(help=__doc__.partition("\n")[0])
@click.option("--requests", type=click.IntRange(1), default=Options.requests, show_default=True)
@click.option(
    "--prompt",
    type=click.IntRange(SHORTEST),
    default=Options.prompt,
    show_default=True,
    help="Tokens of the longest prompt.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=Options.tokens,
    show_default=True,
    help="Tokens generated after each prompt.",
)
@click.option("--layers", type=click.IntRange(1), default=Options.layers, show_default=True)
@click.option("--heads", type=click.IntRange(1), default=Options.heads, show_default=True)
@click.option("--vocabulary", type=click.IntRange(2), default=256, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, envvar="FTRT_SEED", show_default=True)
@click.option("--effects", metavar="DIR", help="Record each effect in a file in DIR.")
@click.option("--quiet", is_flag=True, help="Print the digest only.")
def main(**options):
    """Run this rank to its end."""
    with ftrt.init() as rt:
        if rt.size != 2:
            raise click.UsageError("one rank reads and one writes: start it with -n 2")
        run(rt, Options(**options))


if __name__ == "__main__":
    main()
