"""What happens in each trial, all of it from the seed."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftrt.campaign.cells import GRAPH, PAUSE_MS, WINDOW, Cell

#: Time between two messages: about what a receiver needs for one, so that some lie between
#: completion and consumption when a fault strikes. Far less, and every fault takes a whole window.
INTERVAL_US = {True: 32, False: 40}
_SMALL = 4096
#: A fault-free stream then takes about a twentieth of a second.
MESSAGES = {True: 1024, False: 512}


@dataclass(frozen=True)
class Trial:
    """One injection, or one run without.

    Attributes
    ----------
    number : int
        Place in its cell; controls are numbered by themselves.
    control : bool
        Nothing is injected.
    seed : int
        All that is left to chance comes from it.
    when : float
        Where in the stream the fault strikes, as a part of it.
    pause_ms : int
        How long a pause, or an impaired link, lasts.
    counts : bool
        False of a job's very first run, which nothing is taken from.
    """

    number: int
    control: bool
    seed: int
    when: float
    pause_ms: int
    counts: bool = True


def warm_up(seed: int, cell: Cell) -> Trial:
    """The first run of a job: several times as long as any other, all it touches is new."""
    return replace(plan_trial(seed, cell, 0, control=True), counts=False)


def plan_trial(seed: int, cell: Cell, number: int, control: bool = False) -> Trial:
    """Trial ``number`` of a cell in the campaign with this seed, whatever else the table holds."""
    rng = random.Random(f"{seed}/{cell.name}/{'control' if control else 'fault'}/{number}")
    return Trial(number, control, rng.getrandbits(48), rng.random(), rng.randint(*PAUSE_MS))


def messages_of(cell: Cell, chosen: int | None = None) -> int:
    """Messages of a trial: whole graphs."""
    wanted = chosen or MESSAGES[cell.size <= _SMALL]
    return -(-wanted // GRAPH) * GRAPH


def interval_of(cell: Cell, chosen_us: int | None = None) -> int:
    """Microseconds between two messages."""
    return INTERVAL_US[cell.size <= _SMALL] if chosen_us is None else chosen_us


@dataclass(frozen=True)
class Batch:
    """Trials that one job runs, one after the other.

    Attributes
    ----------
    cell : Cell
    trials : tuple of Trial
        Begins with one that does not count, then controls.
    messages : int
        Of each trial.
    interval_us : int
        Between two messages.
    log : bool
        The ranks say what they do, for a replay.
    """

    cell: Cell
    trials: tuple[Trial, ...]
    messages: int
    interval_us: int
    log: bool = False

    @property
    def spares(self) -> int:
        """Processes that its trials may need in place of dead ones.

        Between GPUs every second one lies on the sender's, and cannot replace the receiver.
        """
        if self.cell.fault != "kill":
            return 0
        kills = sum(not trial.control for trial in self.trials)
        return max(0, 2 * kills - 1) if self.cell.plane == "nccl" else kills

    def first(self, count: int | None) -> Batch:
        """Of the same trials only so many; None for all."""
        return replace(self, trials=self.trials[:count])

    def aim(self, trial: Trial) -> int:
        """How many messages of the trial are sent when its fault strikes.

        Messages leave at a steady pace, so a number that is uniform over the stream is a time that
        is uniform over its length. But a time misses the end of a stream that is faster than the
        ones it was measured by. A fault in the last window may find all of it consumed.
        """
        return 1 + int(trial.when * (self.messages - WINDOW))

    def numbers(self, position: int) -> tuple[int, int]:
        """First and last number of the messages of the trial at a position from 1 on."""
        return (position - 1) * self.messages + 1, position * self.messages

    def write(self, path: Path) -> None:
        """For the ranks."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Batch:
        """As :meth:`write` wrote it."""
        found: dict[str, Any] = json.loads(path.read_text())
        trials = tuple(Trial(**trial) for trial in found.pop("trials"))
        return cls(Cell(**found.pop("cell")), trials, **found)
