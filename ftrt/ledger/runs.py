"""Sets of numbers as sorted disjoint half-open intervals, in numpy."""

from __future__ import annotations

import numpy as np

EMPTY = np.empty((0, 2), np.int64)


def union(*intervals: np.ndarray) -> np.ndarray:
    """Union of arrays of ``(begin, end)`` rows in any order, as sorted disjoint rows."""
    rows = np.concatenate([EMPTY, *intervals])
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not rows.size:
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    starts = np.flatnonzero(np.r_[True, rows[1:, 0] > reach[:-1]])
    return np.stack([rows[starts, 0], reach[np.r_[starts[1:] - 1, rows.shape[0] - 1]]], axis=1)


def size(intervals: np.ndarray) -> int:
    """How many numbers are in intervals; a number that is in two of them counts twice."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def minus(left: np.ndarray, right: np.ndarray) -> int:
    """How many numbers of the set ``left`` are not in the set ``right``."""
    return size(union(left, right)) - size(union(right))


def from_runs(runs: np.ndarray) -> np.ndarray:
    """Intervals of ``(start, length, ...)`` rows."""
    return np.stack([runs[:, 0], runs[:, 0] + runs[:, 1]], axis=1)
