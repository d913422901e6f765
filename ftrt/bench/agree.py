"""An agreement that carries marks against MPI's own, real processes, by turns in one run.

On one host through shared memory (:mod:`ftrt.host.gathering`), MPI with all its transports beside
it. Between hosts by messages (:mod:`ftrt.hosts`), with MPI's shared memory switched off for both
sides so that all goes over TCP. ``Agree`` carries one integer; ``Allgather + Agree`` is what MPI
needs to carry what ours carries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ftrt.errors import UsageError

RANKS = (2, 4, 8, 16)
FLAGS = ["--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm", "--mca", "pml", "ob1"]
_LIMIT_S = 120.0
# form, ours, MPI's
_ROWS = {
    "host": (("shared memory", "agree"), ("shared memory", "allgather_agree")),
    "hosts": (("sweep", "allgather_agree"), ("uniform", "allgather_agree")),
}
_NAMES = {
    "agree": "Agree",
    "allgather_agree": "Allgather + Agree",
    "shared memory": "one host, shared memory",
    "sweep": "between hosts, fault-free sweep",
    "uniform": "between hosts, uniform",
}
_BTL = {"host": "^ofi", "hosts": "self,tcp"}


def rows(starts: int = 3, blocks: int = 9, ranks: tuple[int, ...] = RANKS) -> list[dict]:
    """Rows of the benchmark; ``size`` is the number of ranks.

    Parameters
    ----------
    starts : int
        Starts of mpirun for each size and form.
    blocks : int
        Blocks of calls in a start, MPI's and ours by turns.
    ranks : tuple of int

    Returns
    -------
    list of dict
        ``raw`` and ``ftrt`` are medians in microseconds a call; ``ratio`` is ours over MPI's (below
        1 is faster than MPI), the median over the starts, ``ratio_least`` and ``ratio_most`` their
        range. ``spread`` is half the distance between the quartiles of MPI's blocks, over their
        median.
    """
    if not ranks or min(ranks) < 2 or max(ranks) > 64 or starts < 1 or blocks < 1:
        raise UsageError(f"ranks {ranks}, {starts} starts, {blocks} blocks: use 2 to 64 ranks")
    table = []
    for form, pairs in _ROWS.items():
        for number in ranks:
            found = [_start(form, number, blocks) for _ in range(starts)]
            table += [_row(found, number, ours, theirs) for ours, theirs in pairs]
    return sorted(table, key=lambda row: row["what"])


def _start(form: str, ranks: int, blocks: int) -> dict[str, list[float]]:
    """One start of mpirun; once more where mpirun itself did not come up."""
    try:
        return _started(form, ranks, blocks)
    except UsageError as error:
        if "PMIx server" not in str(error):
            raise
        return _started(form, ranks, blocks)


def _started(form: str, ranks: int, blocks: int) -> dict[str, list[float]]:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, *as_root, *FLAGS, "--mca", "btl", _BTL[form], "-n", str(ranks)]
    job = str(Path(__file__).with_name("_agree_job.py"))
    with tempfile.TemporaryDirectory(prefix="ftrt-bench-", dir="/dev/shm") as directory:
        command += [sys.executable, job, form, str(blocks), directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise UsageError(f"the benchmark ended with {done.returncode}: {done.stderr[-800:]}")
    return json.loads(lines[-1])


def _row(found: list[dict[str, list[float]]], ranks: int, ours: str, theirs: str) -> dict:
    medians = [(statistics.median(s[theirs]), statistics.median(s[ours])) for s in found]
    ratios = [mine / raw for raw, mine in medians]
    blocks = [block for start in found for block in start[theirs]]
    low, _, high = statistics.quantiles(blocks, n=4) if len(blocks) > 1 else blocks * 3
    return {
        "what": f"{_NAMES[ours]}, against {_NAMES[theirs]}",
        "size": ranks,
        "unit": "us",
        "raw": round(statistics.median(raw for raw, _ in medians), 2),
        "ftrt": round(statistics.median(mine for _, mine in medians), 2),
        "ratio": round(statistics.median(ratios), 3),
        "spread": round((high - low) / 2 / statistics.median(blocks), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_most": round(max(ratios), 3),
    }
