"""What a program may ask a stream for: refused in one sentence, before anything is made."""

from __future__ import annotations

import numpy as np
import pytest

from ftrt.errors import UsageError
from ftrt.runtime import arguments
from ftrt.runtime.kept import Replayed
from ftrt.transport import meta
from ftrt.transport.arrays import HostArrays


@pytest.mark.parametrize(
    ("to", "dests"),
    [
        (1, [1]),
        (np.int64(2), [2]),
        (np.array(3), [3]),
        (range(1, 4), [1, 2, 3]),
        (np.arange(1, 3), [1, 2]),
        ({3}, [3]),
        (iter((2, 1)), [2, 1]),
    ],
)
def test_whatever_counts_as_ranks_is_taken(to, dests):
    found = arguments.destinations("s", to, 0, 4)
    assert found == dests
    assert all(type(dest) is int for dest in found)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ([], "name at least one rank"),
        ([1, 2, 1], "each once"),
        ("1", "to='1': a whole number"),
        (["1"], "to='1': a whole number"),
        (1.0, "to=1.0: a whole number"),
        (None, "to=None: a whole number"),
        (0, "to=0 is not another rank of 0..3"),
        ([1, 4], "to=4 is not another rank of 0..3"),
        (-1, "to=-1 is not another rank"),
    ],
)
def test_no_ranks(to, says):
    with pytest.raises(UsageError, match="sender 's': ") as refused:
        arguments.destinations("s", to, 0, 4)
    assert says in str(refused.value)


@pytest.mark.parametrize("source", ["0", None, 1, 4, 0.0])
def test_no_source(source):
    with pytest.raises(UsageError, match="receiver 's': source="):
        arguments.source_rank("s", source, 1, 4)
    assert arguments.source_rank("s", np.int32(0), 1, 4) == 0


@pytest.mark.parametrize("name", ["", "s" * 65, "ä" * 33, 5, None, b"s", "\ud800" * 65])
def test_no_name(name):
    with pytest.raises(UsageError, match="1 to 64 bytes"):
        arguments.stream_name(name)


@pytest.mark.parametrize(
    ("window", "slot_bytes"), [(1, 64), (-1, 64), (2, 63), (2.5, 64), ("2", 64), (2, None)]
)
def test_no_sizes(window, slot_bytes):
    with pytest.raises(UsageError, match="sender 's': "):
        arguments.sizes("s", window, slot_bytes)


@pytest.mark.parametrize(
    ("replay", "spool", "volatile"),
    [(None, False, False), (abs, True, False), (None, True, True), (5, False, False)],
)
def test_one_way_to_have_a_message_again(replay, spool, volatile):
    with pytest.raises(UsageError, match="sender 's': "):
        arguments.again("s", replay, spool, volatile)


@pytest.mark.parametrize("kind", ["f8", "O"])
def test_a_long_dtype_does_not_fill_the_screen(kind):
    dtype = np.dtype([(f"f{i}", kind) for i in range(400)])
    with pytest.raises(UsageError) as refused:
        meta.check(dtype, (3,))
    assert len(str(refused.value)) < 250


def test_a_replay_without_a_return_is_named():
    kept = Replayed(lambda seq: None, None, "rank 2, stream 's'", HostArrays())
    with pytest.raises(UsageError, match=r"rank 2, stream 's': replay\(41\) returned None"):
        kept.again(41)
