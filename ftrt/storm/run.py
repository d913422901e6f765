"""The loop of a storm: job after job until the time is up, and the report."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.host.timing import decision_ms
from ftrt.launch.outside import run_from_outside
from ftrt.storm.check import KINDS, Ended, complaints
from ftrt.storm.hunter import Hunter
from ftrt.storm.plan import Plan, plan_job

APPS = Path(__file__).resolve().parents[2] / "apps"
#: A job takes some seconds; each restart takes two more, each hang or freeze a time-out.
_LIMIT_S = 90.0


@dataclass
class Report:
    """How a storm went; the fields are those of ``--json``."""

    seed: int
    minutes: float = 0.0
    jobs: int = 0
    faults: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    recoveries: int = 0
    restarts: int = 0
    messages: int = 0
    recovery_ms: dict[str, float] = field(default_factory=dict)
    complaints: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    bad: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, duplicated, wrong, hung or left behind."""
        return not self.bad


class Storm:
    """Runs the jobs of one seed.

    Parameters
    ----------
    seed : int
    say : callable
        Takes a line for a person.
    """

    def __init__(self, seed: int, say: Callable[[str], None] = lambda line: None):
        if not (APPS / "stream.py").exists():
            raise UsageError(f"a storm needs the programs in {APPS}: run it in the source tree")
        self._say = say
        self.report = Report(seed)
        self._kinds: Counter = Counter()
        self._times_ms: list[float] = []
        self._digests: dict[tuple, str] = {}
        self._apps = {name: _load(name) for name in ("stream", "rollout")}
        gym = importlib.util.find_spec("gymnasium") is not None
        self._names = ("stream", "rollout") if gym else ("stream",)
        if not gym:
            say("gymnasium is not there: only the plain stream is run")

    def run(self, minutes: float, only: int | None = None) -> Report:
        """Run jobs until the time is up, or job ``only`` once."""
        begin = time.monotonic()
        number = 0 if only is None else only
        while only is not None or time.monotonic() - begin < minutes * 60:
            self._job(plan_job(self.report.seed, number, self._names))
            number += 1
            if only is not None:
                break
        self.report.minutes = round((time.monotonic() - begin) / 60, 2)
        return self.report

    def _job(self, plan: Plan) -> None:
        directory = Path(tempfile.mkdtemp(prefix=f"ftrt-storm-{plan.number}-"))
        digest, expected = self._right(plan)
        ended = run_plan(plan, directory)
        found = complaints(ended, digest, expected)
        self._count(ended, found)
        told = ", ".join(f"{n} {kind}" for kind, n in sorted(ended.faults().items()))
        state = "ok" if not found else f"BAD {found}"
        self._say(f"job {plan.number}: {plan.app} n={plan.ranks} {plan.stable}: {told}: {state}")
        if found:
            (directory / "output.txt").write_text(ended.output)
            self._say(f"  kept in {directory}; once more: {self._again(plan)}")
        else:
            shutil.rmtree(directory, ignore_errors=True)

    def _again(self, plan: Plan) -> str:
        return f"ftrt storm --seed {self.report.seed} --job {plan.number}"

    def _count(self, ended: Ended, found: dict[str, list[str]]) -> None:
        report, kinds = self.report, ended.faults()
        report.jobs += 1
        report.faults += sum(kinds.values())
        self._kinds.update(kinds)
        report.by_kind = dict(sorted(self._kinds.items()))
        report.restarts += max(0, ended.report.get("attempts", 1) - 1)
        report.messages += (ended.report.get("audit") or {}).get("consumed", 0)
        for event in ended.events:
            if event["event"] == "recovery" and "rank" in event:
                report.recoveries += 1
                self._times_ms.append(decision_ms(event["phases_ms"]))
        times = sorted(self._times_ms)
        if times:
            pick = {"median": 0.5, "p99": 0.99, "max": 1.0}
            report.recovery_ms = {
                name: round(times[min(len(times) - 1, int(part * len(times)))], 2)
                for name, part in pick.items()
            }
        for name, texts in found.items():
            report.complaints[name] += len(texts)
        if found:
            entry = {"job": ended.plan.number, "again": self._again(ended.plan)}
            report.bad.append({**entry, "directory": str(ended.directory), **found})

    def _right(self, plan: Plan) -> tuple[str, dict]:
        """Digest of the right result, and the effects of a complete run."""
        app = self._apps[plan.app]
        options = _options_of(app, plan.arguments)
        expected = app.expected_effects(plan.ranks, options)
        if plan.app == "stream":
            return _digest_of_stream(app, plan.ranks, options), expected
        key = (plan.arguments, plan.ranks)
        if key not in self._digests:
            self._digests[key] = _without_faults(plan)
        return self._digests[key], expected


def run_plan(plan: Plan, directory: Path) -> Ended:
    """Run one job under its faults; it is ended by force after a limit."""
    arguments = [*plan.options, str(APPS / f"{plan.app}.py")]
    arguments += [*plan.arguments, "--effects", str(directory / "effects")]
    settings = {"FTRT_SHM": "1" if plan.shm else "0"}
    hunter = Hunter(directory / "ledger", plan.strikes)
    outcome = run_from_outside(directory, arguments, _LIMIT_S, settings, hunter)
    return Ended(
        plan,
        directory,
        outcome.status,
        outcome.output,
        outcome.report,
        outcome.events,
        hunter.done,
    )


def _without_faults(plan: Plan) -> str:
    calm = Plan(plan.number, plan.app, plan.arguments, plan.ranks, 0, "process", True, ())
    with tempfile.TemporaryDirectory(prefix="ftrt-storm-calm-") as directory:
        ended = run_plan(calm, Path(directory))
    if ended.status != 0:
        raise UsageError(f"{plan.app} does not even run without a fault: {ended.output}")
    return str(ended.report["digest"])


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ftrt_storm_{name}", APPS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _options_of(app: Any, arguments: tuple[str, ...]) -> Any:
    given = app.main.make_context("storm", list(arguments)).params
    return app.Options(**given)


def _digest_of_stream(app: Any, ranks: int, options: Any) -> str:
    """What the one receiver that speaks prints if all is as the formula says."""
    routes = app.routes(ranks, options.fan)
    speaker = min(min(targets) for targets in routes.values())
    sources = sorted(source for source, targets in routes.items() if speaker in targets)
    data = b"".join(app.expected_sums(source, options).tobytes() for source in sources)
    return hashlib.sha256(data).hexdigest()
