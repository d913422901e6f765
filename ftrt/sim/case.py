"""A failing case as a file: what is left of the plan, and the code that it fits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.sim.plan import Fault, Plan, Stream, make_plan

FORMAT = 1
#: Modules of the simulator that have no part in a run.
_ASIDE = (
    "case.py",
    "command.py",
    "long.py",
    "report.py",
    "scale.py",
    "scale_page.py",
    "scenario.py",
)


def code_digest() -> str:
    """Digest of the source that a run depends on: a case fits no other."""
    root = Path(__file__).parents[1]
    total = hashlib.sha256()
    for folder in ("agree", "sim"):
        for path in sorted((root / folder).rglob("*.py")):
            if path.name in _ASIDE:
                continue
            total.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def save(path: str | Path, plan: Plan) -> None:
    """Write a case.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    fields: dict[str, Any] = plan._asdict()
    fields["streams"] = [stream._asdict() for stream in plan.streams]
    fields["faults"] = [fault._asdict() for fault in plan.faults]
    case = {"format": FORMAT, "code": code_digest(), "plan": fields}
    try:
        Path(path).write_text(json.dumps(case, indent=1) + "\n")
    except OSError as error:
        raise UsageError(
            f"--save {path}: {error.strerror}; name a file in a folder of yours"
        ) from error


def load(path: str | Path) -> Plan:
    """Read a case.

    Raises
    ------
    UsageError
        It cannot be read, or belongs to another version of the code.
    """
    try:
        case = json.loads(Path(path).read_text())
        number, code, plan = case["format"], case["code"], dict(case["plan"])
        again = f"`ftrt sim --ranks {int(plan['ranks'])} --seeds 1 --seed {int(plan['seed'])}`"
        if number != FORMAT:
            raise UsageError(
                f"{path} has format {number}, this ftrt reads format {FORMAT}: run the seed again "
                f"with {again}"
            )
        if code != code_digest():  # first: what is inside may have other fields
            raise UsageError(
                f"{path} was written by other code ({code}, this is {code_digest()}): its events "
                f"would come in another order; run the seed again with {again}"
            )
        plan["streams"] = tuple(Stream(**stream) for stream in plan["streams"])
        plan["faults"] = tuple(Fault(**fault) for fault in plan["faults"])
        made = Plan(**plan)
        whole = _from_its_seed(made)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no case of the simulator: {error!r}") from error
    if not whole:
        raise UsageError(
            f"{path} was changed by hand: it is not what is left of seed {made.seed} at "
            f"{made.ranks} ranks when faults and messages are taken away; write it again with "
            "`ftrt sim --save`"
        )
    return made


def _from_its_seed(plan: Plan) -> bool:
    """Whether a plan is that of its seed, smaller at most, as `ftrt.sim.run.shrink` makes it."""
    full = make_plan(plan.ranks, plan.seed, plan.least > 0)
    small = full._replace(
        faults=plan.faults, streams=plan.streams, loss=plan.loss, stepwise=plan.stepwise
    )
    ends = [stream._replace(last=0) for stream in plan.streams]
    return (
        plan == small
        and set(plan.faults) <= set(full.faults)
        and ends == [stream._replace(last=0) for stream in full.streams]
        and all(0 < s.last <= f.last for s, f in zip(plan.streams, full.streams, strict=True))
        and plan.loss in (0.0, full.loss)
        and plan.stepwise in (False, full.stepwise)
    )
