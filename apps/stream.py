"""A plain stream whose result is known in closed form.

One rank sends numbered messages, another adds them up and compares the sums with the formula.
With two ranks rank 0 sends to rank 1; with more, every other rank sends to rank 0 unless --fan
says otherwise.

    ftrt run -n 2 --spares 1 --fault kill:1@2000msg apps/stream.py --messages 10000
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import hashlib  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import click  # noqa: E402
import numpy as np  # noqa: E402

import ftrt  # noqa: E402
from ftrt.oracle import Effects  # noqa: E402

STREAM = "numbers"
STRIDE = 0x9E3779B97F4A7C15  # odd, so that no two messages of a stream have the same words
MASK = 2**64 - 1


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    messages: int = 20_000
    size: int = 64
    batch: int = 1
    fan: str | None = None
    delay_us: int = 0
    seed: int = 0
    effects: str | None = None
    quiet: bool = False


def routes(size, fan=None):
    """Return, for each sending rank, the list of the ranks it sends to.

    Parameters
    ----------
    size : int
        Number of ranks.
    fan : {"in", "out", "pair"}, optional
        All others to rank 0, rank 0 to all others, or each even rank to the next one; left out,
        "pair" for two ranks and "in" for more.
    """
    fan = fan or ("pair" if size == 2 else "in")
    if fan == "in":
        return {rank: [0] for rank in range(1, size)}
    if fan == "out":
        return {0: list(range(1, size))}
    return {rank: [rank + 1] for rank in range(0, size - 1, 2)}


def first_word(seq, source, options):
    """Return word 0 of a message; word j is larger by j."""
    return (seq * STRIDE + source + options.seed) & MASK


def make(seq, source, options):
    """Return message `seq` of a sender: uint64, shape (size // 8,)."""
    words = np.arange(options.size // 8, dtype=np.uint64)
    words += np.uint64(first_word(seq, source, options))
    return words


def expected_sums(source, options):
    """Return what a receiver has when it has consumed everything from one sender.

    The sum of the words of message s is ``a s + b``. Returned is, modulo 2**64, the count n, the
    sum of ``a s + b``, and the sum of ``s (a s + b)``, which is another one in any other order.
    """
    n, words = options.messages, options.size // 8
    a, b = words * STRIDE, words * (source + options.seed) + words * (words - 1) // 2
    sum1, sum2 = n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6
    return np.array([n, (a * sum1 + b * n) & MASK, (a * sum2 + b * sum1) & MASK], dtype=np.uint64)


def added(sums, array):
    """Return the sums with one more message in them."""
    count, plain, weighted = (int(value) for value in sums)
    count, value = count + 1, int(array.sum(dtype=np.uint64))
    fresh = count, (plain + value) & MASK, (weighted + count * value) & MASK
    return np.array(fresh, dtype=np.uint64)


def send(rt, targets, options):
    """Send all messages that nobody has yet."""

    def replay(seq):
        return rt.to_plane(make(seq, rt.rank, options))

    # Small messages of a batch share a slot.
    slot_bytes = max(64, options.size, min(options.size * options.batch, 64 * 1024))
    with rt.sender(STREAM, to=targets, replay=replay, slot_bytes=slot_bytes) as out:
        while out.next_seq <= options.messages:
            seq = out.next_seq
            count = min(options.batch, options.messages + 1 - seq)
            if options.batch == 1:
                out.send(replay(seq))
            else:
                rows = [make(seq + extra, rt.rank, options) for extra in range(count)]
                out.send_batch(rt.to_plane(np.stack(rows)))
            if options.delay_us:
                time.sleep(options.delay_us * 1e-6)


def receive(rt, sources, options):
    """Consume the streams of all sources in turn; return the sums of each."""
    state = rt.restore() or {}
    sums = {
        source: np.array(state.get(f"sums{source}", [0, 0, 0]), np.uint64) for source in sources
    }
    receivers = {source: rt.receiver(STREAM, source=source) for source in sources}
    done = sum(int(count) for count, _, _ in sums.values())
    with Effects(options.effects, rt.rank) as effects:
        while receivers:
            for source, receiver in list(receivers.items()):
                message = next(receiver, None)
                if message is None:
                    del receivers[source]
                    continue
                effects.begin(message.stream, source, message.seq)
                with message.consume() as effect:
                    array = rt.to_host(message.array)
                    sums[source] = effect[f"sums{source}"] = added(sums[source], array)
                effects.committed(message.stream, source, message.seq)
                done += 1
                rt.progress(done, options.messages * len(sources))
    return sums


def check(rank, sums, options):
    """Raise if any of the sums differs from the closed form."""
    for source, found in sums.items():
        expected = expected_sums(source, options)
        if not np.array_equal(found, expected):
            raise click.ClickException(
                f"rank {rank} has {found.tolist()} from rank {source}, expected {expected.tolist()}"
            )


def report(sums, options):
    """Print the digest of the sums as the last line."""
    if not options.quiet:
        print(f"{options.messages} messages of {options.size} bytes from each of {len(sums)}")
    data = b"".join(sums[source].tobytes() for source in sorted(sums))
    print(f"digest {hashlib.sha256(data).hexdigest()}", flush=True)


def run(rt, options):
    """Be a sender, a receiver, or, where the fan has no part for this rank, nothing."""
    to = routes(rt.size, options.fan)
    sources = [source for source, targets in to.items() if rt.rank in targets]
    if rt.rank in to:
        send(rt, to[rt.rank], options)
    elif sources:
        sums = receive(rt, sources, options)
        check(rt.rank, sums, options)
        # All receivers check; one speaks.
        if rt.rank == min(min(targets) for targets in to.values()):
            report(sums, options)


def expected_effects(size, options):
    """Return what `ftrt.oracle.check_effects` expects of a complete run with `size` ranks."""
    return {
        (target, STREAM, source): options.messages
        for source, targets in routes(size, options.fan).items()
        for target in targets
    }


def _whole_words(_context, _option, size):
    if size % 8:
        raise click.BadParameter(f"{size} is not a multiple of 8")
    return size


@click.command(help=__doc__.partition("\n")[0])
@click.option("--messages", type=click.IntRange(0), default=Options.messages, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(0),
    default=Options.size,
    show_default=True,
    callback=_whole_words,
    help="Bytes of a message, a multiple of 8.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=Options.batch,
    show_default=True,
    help="Messages of one send.",
)
@click.option("--fan", type=click.Choice(["in", "out", "pair"]), help="Who sends to whom.")
@click.option("--delay-us", type=click.IntRange(0), default=0, help="Pause after each send.")
@click.option("--seed", type=click.IntRange(0), default=0, envvar="FTRT_SEED", show_default=True)
@click.option("--effects", metavar="DIR", help="Record each effect in a file in DIR.")
@click.option("--quiet", is_flag=True, help="Print the digest only.")
def main(**options):
    """Run this rank to its end."""
    with ftrt.init() as rt:
        if rt.size < 2:
            raise click.UsageError("a stream needs two ends: start it with -n 2 or more")
        run(rt, Options(**options))


if __name__ == "__main__":
    main()
