"""Throughput of a stream between two ranks of one host, against windowed MPI, in one run.

A start of the benchmark is a real job of two ranks. Its processes measure raw MPI, the ring and
the public API in turn, each in the best configuration of those tried; the rows hold the medians
over several starts, and ratios are medians of the ratios within each start.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError

_LIMIT_S = 300.0
_NAMES = {"ring": "ring", "public": "send and consume()"}


def rows(plane: str = "host", starts: int = 5) -> list[dict]:
    """Rows of the benchmark, one for each size, kind and yardstick.

    Parameters
    ----------
    plane : str
        ``host``, or ``nccl``: raw NCCL between two GPUs, one start with alternating samples.
    starts : int
        Number of jobs.

    Returns
    -------
    list of dict
        ``ratio`` is throughput over raw's throughput: above 1 is faster than raw. ``spread`` is
        the range of raw over the starts divided by its median.
    """
    if plane == "nccl":
        return [_nccl_row(case) for case in _start("_nccl_job.py", "--plane", "nccl")]
    if plane != "host":
        raise UsageError(f"no stream benchmark of plane {plane}: use --plane host or --plane nccl")
    found = [_start("_stream_job.py") for _ in range(starts)]
    cases = [[start["cases"][i] for start in found] for i in range(len(found[0]["cases"]))]
    single = cases[0]
    table = []
    for same in cases:
        for kind in ("ring", "public"):
            if same[0]["batch"] > 1:
                table.append(_row(same, kind, "raw one by one", _one_by_one(single)))
                table.append(_row(same, kind, "raw packed by hand", _per_message(same, "bare")))
            else:
                table.append(_row(same, kind, "bare raw", _per_message(same, "bare")))
                table.append(_row(same, kind, "raw that reads", _per_message(same, "reading")))
                raw = _per_message(same, "new")
                table.append(_row(same, kind, "raw that writes and reads", raw))
    return [*table, *_commit_rows([start["commits"] for start in found])]


def _nccl_row(case: dict) -> dict:
    window = f"{case['path']}, windows of {case['batch']}"
    packed = ", packed" if case["packed"] else ""
    return {
        "what": f"send_batch and consume() against raw NCCL, {window}{packed}",
        "size": case["size"],
        "unit": "us/message",
        "raw": case["raw_us"],
        "ftrt": case["ftrt_us"],
        "ratio": case["ratio"],
        "spread": case["raw_spread"],
        "ratio_low": case["ratio_low"],
        "ratio_high": case["ratio_high"],
        "messages": case["messages"],
    }


def _start(program: str, *options: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="ftrt-bench-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "ftrt.cli", "run", "-n", "2"]
        command += [*options, "--ledger", f"{directory}/ledger"]
        command += [str(Path(__file__).with_name(program)), str(result)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            said = (done.stdout + done.stderr)[-800:]
            raise UsageError(f"the benchmark's job ended with {done.returncode}: {said}")
        return json.loads(result.read_text())


def _per_message(same: list[dict], name: str) -> list[float]:
    return [start["us"][name] / start["batch"] for start in same]


def _one_by_one(single: list[dict]) -> list[float]:
    return _per_message(single, "bare")


def _row(same: list[dict], kind: str, yardstick: str, raw: list[float]) -> dict:
    first, ours = same[0], _per_message(same, kind)
    what = f"{_NAMES[kind]} against {yardstick}"
    if first["batch"] > 1:
        what += f", batches of {first['batch']}"
    return {
        "what": what,
        "size": first["size"],
        "unit": "us/message",
        "raw": statistics.median(raw),
        "ftrt": statistics.median(ours),
        "ratio": statistics.median(r / o for r, o in zip(raw, ours, strict=True)),
        "spread": (max(raw) - min(raw)) / statistics.median(raw),
        "raw_best": _common(same, "raw"),
        "ftrt_best": _common(same, kind),
    }


def _common(same: list[dict], key: str) -> str:
    """The configuration that won most often."""
    return statistics.mode(start[key] for start in same)


def _commit_rows(found: list[dict]) -> list[dict]:
    raw = [start["raw"] for start in found]
    what = {"alone": "consume() of one message", "batch": "consume() in a batch of 4096"}
    return [
        {
            "what": text,
            "size": 16,
            "unit": "ns/message",
            "raw": statistics.median(raw),
            "ftrt": statistics.median(start[name] for start in found),
            "ratio": statistics.median(s["raw"] / s[name] for s in found),
            "spread": (max(raw) - min(raw)) / statistics.median(raw),
            "raw_best": "struct.pack_into",
            "ftrt_best": "",
        }
        for name, text in what.items()
    ]
