"""Rank 0 sends to all others, who add up; whoever is left takes over the streams of the dead.

With ``--fan in`` all others send to rank 0 instead, and senders that are left go on for dead ones.
Every final sum is compared with the closed form, and effects are recorded for the oracle.
"""

import argparse
import time

import numpy as np

import ftrt
from ftrt.oracle import Effects


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--fan", default="out", choices=["out", "in"])
    parser.add_argument("--effects")
    parser.add_argument("--delay-us", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--spool", action="store_true")
    parser.add_argument("--alone", action="store_true", help="Never take anything over.")
    return parser.parse_args()


def make(seq, rank):
    return np.array([seq * 1000 + rank, seq], np.int64)


def send(seat, to, options):
    again = {"spool": True} if options.spool else {"replay": lambda seq: make(seq, seat.rank)}
    with seat.sender("numbers", to=to, **again) as out:
        while out.next_seq <= options.messages:
            if options.batch > 1:
                count = min(options.batch, options.messages + 1 - out.next_seq)
                seqs = range(out.next_seq, out.next_seq + count)
                out.send_batch(np.stack([make(seq, seat.rank) for seq in seqs]))
            else:
                out.send(make(out.next_seq, seat.rank))
            time.sleep(options.delay_us * 1e-6)


def consume(messages, options, rank):
    sums = {}
    with Effects(options.effects, rank) as effects:
        for message in messages:
            seat = message.seat
            if seat.rank not in sums:
                state = seat.restore() or {}
                sums[seat.rank] = {int(k): v.copy() for k, v in state.items()}
            mine = sums[seat.rank]
            before = mine.get(message.source, np.zeros(3, np.int64))
            effects.begin(f"numbers@{seat.rank}", message.source, message.seq)
            with message.consume() as effect:
                value = int(message.array[0])
                after = before + [1, value, message.seq * value]
                effect[str(message.source)] = mine[message.source] = after
            effects.committed(f"numbers@{seat.rank}", message.source, message.seq)
    return sums


def check(rank, sums, sources, options):
    seqs = np.arange(1, options.messages + 1)
    for source in sources:
        values = seqs * 1000 + source
        want = [len(seqs), values.sum(), (seqs * values).sum()]
        got = sums.get(source, np.zeros(3)).tolist()
        assert got == want, (rank, source, got, want)
    print(f"rank {rank} is right", flush=True)


def main():
    options = parse()
    with ftrt.init() as rt:
        others = list(range(1, rt.size))
        if (rt.rank == 0) == (options.fan == "out"):
            to = others if options.fan == "out" else 0
            for seat in [rt] if options.alone else rt.seats():
                send(seat, to, options)
            return
        sources = [0] if options.fan == "out" else others
        if options.alone:
            sums = consume(rt.receiver("numbers", sources[0]), options, rt.rank)
        else:
            sums = consume(rt.inbox("numbers", sources), options, rt.rank)
        for seat in rt.acting_for:
            state = {int(key): value for key, value in (seat.restore() or {}).items()}
            check(seat.rank, state, sources, options)
            for source, value in sums.get(seat.rank, {}).items():
                assert value.tolist() == state[source].tolist()


main()
