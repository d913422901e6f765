"""The table of deliberate bugs in docs/results/simulator.md: how many seeds each took.

``python -m tests.sim.mutation_table`` searches for each from seed 0 on and writes the table.
"""

import multiprocessing
import re
from pathlib import Path

from ftrt.sim.long import MUTATIONS_HEAD
from ftrt.sim.plan import make_plan
from ftrt.sim.run import run_one

from . import reviewer_mutations, second_reader_mutations
from .mutations import MUTATIONS, switched_on

PAGE = Path(__file__).parents[2] / "docs" / "results" / "simulator.md"
RANKS, MOST = 4, 2000
HEAD = "| deliberate bug | chosen by | seeds | seen by |\n|---|---|---|---|"
ROW = re.compile(r"^\| (.*) \| (.*) \| ([0-9,]+) \| (\w+) \|$", re.M)


def search(name):
    """Look for a bug from seed 0 on; how many seeds it took and which checker saw it."""
    with switched_on(name):
        for seed in range(MOST):
            _, violation = run_one(make_plan(RANKS, seed))
            if violation is not None:
                return seed + 1, violation.checker
    raise SystemExit(f"{name} was not found in {MOST} seeds")


def rows():
    """The rows of the page: text to (chosen by, seeds, checker)."""
    _, _, section = PAGE.read_text().partition(MUTATIONS_HEAD)
    found = {}
    for text, chosen_by, seeds, checker in ROW.findall(section):
        found[text] = (chosen_by, int(seeds.replace(",", "")), checker)
    return found


def section():
    """Search for all and write the section of the page."""
    with multiprocessing.get_context("fork").Pool() as pool:
        found = pool.map(search, MUTATIONS, chunksize=1)
    lines = [HEAD]
    for (text, _, chosen_by), (seeds, checker) in zip(MUTATIONS.values(), found, strict=True):
        lines.append(f"| {text} | {chosen_by} | {seeds:,} | {checker} |")
    others = sum(chosen_by != "its author" for _, _, chosen_by in MUTATIONS.values())
    return f"""{MUTATIONS_HEAD}

`python -m tests.sim.mutation_table`: each bug is switched on, and seeds at {RANKS} ranks are
run from 0 on until a checker objects. {others} of the {len(MUTATIONS)} were not chosen by the
author of the core: by who wrote down what is promised before there was one, and by two readers
of it.

{chr(10).join(lines)}
"""


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition(MUTATIONS_HEAD)
    PAGE.write_text(f"{before.rstrip()}\n\n{section()}")
    assert reviewer_mutations.__doc__ and second_reader_mutations.__doc__
