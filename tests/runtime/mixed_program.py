"""Messages of every sort on one stream, in any mixture; the receiver checks each to the bit."""

from __future__ import annotations

import numpy as np

import ftrt

ROUNDS = 60


def payload(seq: int, sort: int) -> np.ndarray:
    shape = ((16,), (16,), (3, 5), (700,), (0,), (8,))[sort]
    return (np.arange(np.prod(shape)).reshape(shape) + seq).astype(np.int32)


def plan() -> list[tuple[int, int]]:
    """``(sort, how many at once)``: plain runs, other shapes, fragments, empty ones, batches."""
    draw = np.random.default_rng(3)
    return [(int(draw.integers(6)), int(draw.integers(1, 9))) for _ in range(ROUNDS)]


def sorts() -> list[int]:
    return [sort for sort, count in plan() for _ in range(count)]


def main() -> None:
    every = sorts()
    with ftrt.init() as rt:
        if rt.rank == 0:
            again = lambda seq: payload(seq, every[seq - 1])  # noqa: E731
            out = rt.sender("mixed", to=1, replay=again, slot_bytes=512, window=8)
            while (seq := out.next_seq) <= len(every):
                run = 1
                while seq + run <= len(every) and every[seq + run - 1] == every[seq - 1]:
                    run += 1
                if every[seq - 1] == 5:
                    out.send_batch(np.stack([again(seq + i) for i in range(run)]))
                else:
                    out.send(again(seq))
            out.close()
            return
        source, kept = rt.receiver("mixed", source=0), []
        for message in source:
            wanted = payload(message.seq, every[message.seq - 1])
            assert message.array.dtype == wanted.dtype and message.array.shape == wanted.shape
            assert (message.array == wanted).all(), message.seq
            if message.seq % 7 == 0:
                kept = [*kept[-3:], (message.seq, message.array.copy())]
            for seq, array in kept:
                assert (array == payload(seq, every[seq - 1])).all()
            with message.consume():
                pass
        assert source.next_seq == len(every) + 1


if __name__ == "__main__":
    main()
