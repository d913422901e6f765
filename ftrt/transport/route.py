"""Through the caches or past them: which way a ring's large payloads go, by trial.

The receiving core has read a slot before it is written again. Whether it pays to take its lines
back or to write past the caches depends on how far apart the two cores are: 64 KiB took 2 and 4 us
between neighbours, 10 and 4 us across a die. Nobody says where a virtual core lies, and it moves.
So the sender tries both ways now and then, in turn, and goes the faster one in between.

A trial measures nanoseconds a KiB over groups of two laps of the ring, from start to start, so
that what a free slot allows for once does not count. The fastest group of each way is compared: a
pause of the program is nobody's fault. Where the program or the receiver is what limits a stream,
both ways come out alike and nothing changes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from ftrt.atomics import intrinsic

# State: where trials begin and where every payload goes past the caches, in bytes; the rest is zero
# at first. TURN counts large frames, AT and BYTES belong to the group that is under way.
TRY_FROM, PAST_FROM, TURN, CHOSEN, AT, BYTES, BEST, _BEST_PAST = range(8)
ROUTE = 8
_GROUPS = 3
#: Smaller payloads stay in the caches, larger ones would not fit there anyway.
SMALL_BYTES, LARGE_BYTES, NEVER = 16 << 10, 4 << 20, 1 << 62
#: A trial of the other way takes this part of all frames.
_PART = 64
#: The other way must be this much faster, in per cent, before it is taken.
MARGIN = 10
_CLOCK_MONOTONIC = 1
_I64 = types.int64


@intrinsic
def _now_ns(typingctx):
    """``CLOCK_MONOTONIC`` in nanoseconds; no system call on the platforms that matter."""

    def codegen(context, builder, signature, args):
        word, number = ir.IntType(64), ir.IntType(32)
        pair = cgutils.alloca_once(builder, ir.ArrayType(word, 2))
        kind = ir.FunctionType(number, [number, pair.type])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [ir.Constant(number, _CLOCK_MONOTONIC), pair])
        parts = builder.load(pair)
        seconds, rest = (builder.extract_value(parts, i) for i in (0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(word, 1_000_000_000)), rest)

    return types.int64(), codegen


@njit(types.boolean(types.Array(_I64, 1, "C"), _I64, _I64), cache=True)
def past_caches(route, size, slots):
    """Whether a payload of ``size`` bytes is to be stored past the caches.

    Called once for each frame of a ring with ``slots`` slots, in the order of the frames.
    """
    if size >= route[PAST_FROM]:
        return True
    if size < route[TRY_FROM]:
        return False
    # The first laps after a change still meet what the other way left.
    group = 2 * slots
    phase = group * (1 + _GROUPS) + 1
    turn, chosen = route[TURN], route[CHOSEN]
    route[TURN] = (turn + 1) % (_PART * phase)
    if turn >= 2 * phase:
        return chosen != 0
    way = chosen if turn < phase else 1 - chosen
    if turn == 0:
        route[BEST] = route[_BEST_PAST] = 0
    since = turn % phase - group
    if since >= 0 and since % group == 0:
        now = _now_ns()
        if since > 0:
            taken = (now - route[AT]) * 1024 // max(route[BYTES], 1)
            best = route[BEST + way]
            route[BEST + way] = taken if best == 0 else min(best, taken)
        route[AT], route[BYTES] = now, 0
    route[BYTES] += size
    if turn == 2 * phase - 1 and route[BEST + 1 - chosen] * 100 < route[BEST + chosen] * (
        100 - MARGIN
    ):
        route[CHOSEN] = 1 - chosen
    return way != 0
