"""Runs one batch: a job of its own in a folder of its own, of which nothing is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ftrt.campaign.conductor import Conductor
from ftrt.campaign.judge import Judge, Judged
from ftrt.campaign.links import SETTINGS, Namespace
from ftrt.campaign.page import Page
from ftrt.campaign.places import Place
from ftrt.campaign.plan import Batch
from ftrt.launch import leftovers
from ftrt.launch.outside import Outcome, run_from_outside

PROGRAM = Path(__file__).with_name("_job.py")
#: For the job's start, for each process, and for each trial, on a machine that is busy.
_START_S, _PROCESS_S, _TRIAL_S = 60.0, 3.0, 8.0


def run_batch(
    batch: Batch,
    place: Place,
    said: Callable[[int], None] = lambda position: None,
    echo: Callable[[str], object] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Judged:
    """Run it and judge it.

    Parameters
    ----------
    batch : Batch
    place : Place
        Where its cell runs.
    said : callable
        Called with the position of each trial that is over.
    echo : callable
        Gets what the job printed.
    enough : callable
        Once it is true no more trials begin; those that are over count.

    Returns
    -------
    Judged
        With a complaint the folder of the batch is kept, and the complaint names it.
    """
    directory = Path(tempfile.mkdtemp(prefix="ftrt-campaign-"))
    keep = False
    try:
        batch.write(directory / "batch.json")
        page = Page.create(directory / "page")
        with Namespace() if batch.cell.fault == "link" else contextlib.nullcontext() as link:
            conductor = Conductor(batch, page, link, said, enough)
            outcome = _run(batch, directory, conductor, link)
        if echo is not None:
            echo(outcome.output)
        ran = batch.first(conductor.done)
        judged = Judge(ran, directory, conductor.struck, len(conductor.killed), outcome).judge()
        judged.complaints += _left(outcome)
        if judged.complaints:
            keep = True
            (directory / "output.txt").write_text(outcome.output)
            judged.complaints.append(f"all of that batch is kept in {directory}")
        return judged
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _run(batch: Batch, directory: Path, conductor: Conductor, link: Namespace | None) -> Outcome:
    arguments = ["-n", "2", "--spares", str(batch.spares), "--plane", batch.cell.plane]
    arguments += [str(PROGRAM), str(directory)]
    limit_s = _START_S + _PROCESS_S * (2 + batch.spares) + _TRIAL_S * len(batch.trials)
    settings, prefix = _settings(batch), link.prefix if link else []
    return run_from_outside(directory, arguments, limit_s, settings, conductor, prefix)


def _settings(batch: Batch) -> dict[str, str]:
    """Streams go over MPI: a ring in shared memory outlives a receiver, and nothing disagrees."""
    if batch.cell.plane == "host":
        return {"FTRT_SHM": "0", **(SETTINGS if batch.cell.fault == "link" else {})}
    return {"FTRT_NCCL_MODE": batch.cell.path}


def _left(outcome: Outcome) -> list[str]:
    job = outcome.report.get("job")
    if not job:
        return []
    found = [f"process {pid}" for pid in sorted(leftovers.of_job(job) - {os.getpid()})]
    found += [str(path) for path in sorted(leftovers.SHM.glob(f"ftrt-{job[:8]}*"))]
    return [f"left behind: {', '.join(found)}"] if found else []
