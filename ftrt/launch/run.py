"""``ftrt run``: attempts until the job is done, failed in the user's code, or beyond recovery."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ftrt.errors import LedgerError, UsageError
from ftrt.host.shm import check_room, sweep
from ftrt.host.words import mpi_directory
from ftrt.launch.attempt import Attempt, Events
from ftrt.launch.directory import held, job_of
from ftrt.launch.gpus import Gpus
from ftrt.launch.gpus import check as check_gpus
from ftrt.launch.gpus import lines as gpu_lines
from ftrt.launch.grow import grown
from ftrt.launch.hosts import Place, ask, named, own_first
from ftrt.launch.judge import Verdict
from ftrt.launch.leftovers import sweep_mpich
from ftrt.launch.mpirun import Mpi, command, environment, find_mpirun, identify
from ftrt.launch.options import Options, check
from ftrt.launch.screen import PlainScreen, make_screen
from ftrt.launch.slurm import check_slots
from ftrt.launch.stop import Stop, Stopped
from ftrt.launch.summary import (
    Report,
    audit_line,
    outcome_of,
    plural,
    summary_line,
    unclean,
    write_report,
)
from ftrt.ledger.reserve import make_reserve
from ftrt.runtime.config import TIMEOUTS, Config

#: Settings of the launcher's environment that ranks get; an option is stronger.
_PASSED_ON = (
    *("FTRT_SHM", "FTRT_SYNC_INTERVAL_S", *map("FTRT_{}_TIMEOUT_S".format, TIMEOUTS)),
    *("FTRT_NCCL_MODE", "FTRT_NCCL_PATH", "FTRT_NCCL_LIBRARY", "FTRT_FAKE_GPUS", "FTRT_SHARE_GPU"),
    *("FTRT_NCCL_REGISTER", "FTRT_FAKE_WITHOUT"),
)

# Where mpirun keeps its session. Under the system's folder for temporary files one that was killed
# leaves it behind, and a later mpirun that is given the same process id cannot start ("The PMIx
# server's listener thread failed to start"). This one is removed with the job.
_SESSION = "PRTE_MCA_prte_tmpdir_base"

EXIT_OK, EXIT_PROGRAM, EXIT_USAGE, EXIT_IMPOSSIBLE = 0, 1, 2, 3


def run_job(
    options: Options,
    audit: Callable[[Path], dict[str, Any]] | None = None,
    screen: PlainScreen | None = None,
) -> Report:
    """Run a job to its end and return the report of it.

    Parameters
    ----------
    options : Options
        What to run.
    audit : callable, optional
        Audits a ledger directory; ``ftrt.ledger.audit.audit`` by default.
    screen : PlainScreen, optional
        Where to show it; what fits the output by default.

    Raises
    ------
    UsageError
        The options cannot work; nothing was started.
    LedgerError
        The ledger's directory is unusable; nothing was started.
    Stopped
        A signal came before anything was started.
    """
    with Stop() as stop:
        return _run_job(options, audit or _audit, screen, stop)


def _run_job(
    options: Options,
    audit: Callable[[Path], dict[str, Any]],
    screen: PlainScreen | None,
    stop: Stop,
) -> Report:
    check(options)
    gpus = check_gpus(options.ranks, options.standby) if options.plane == "nccl" else Gpus()
    names = _names(options)
    with stop.interrupts():
        mpi = identify(find_mpirun(options.mpirun))
    check_slots(options.ranks, options.spares if mpi.ulfm else 0, os.environ)
    if names and not mpi.ulfm:
        raise UsageError(
            f"{mpi.name} is used without ULFM, which is for one host in this version: leave "
            "--hosts out, or use Open MPI 5 or later"
        )
    sweep()
    if os.environ.get("FTRT_SHM") != "0":
        check_room(options.ranks + options.spares)
    chosen = Path(options.ledger).resolve() if options.ledger else None
    job = job_of(chosen, options)
    directory = chosen or Path(f"ftrt-{time.strftime('%Y%m%d-%H%M%S')}-{job[:8]}").resolve()
    with stop.interrupts():
        hosts = _hosts(names, mpi.mpirun, directory)
    Config.from_environment(_settings(options, mpi, job, directory, 1, gpus.number))
    stop.check()
    with (
        held(directory, job, options, several=bool(hosts)) as first,
        screen or make_screen() as shown,
    ):
        ranks, spares = plural(options.ranks, "rank"), plural(options.spares, "spare")
        shown.note(f"job {job[:8]}, {ranks}, {spares}")
        shown.note(f"ledger {directory}")
        if hosts:
            shown.note(f"hosts {', '.join(hosts)}")
        if not mpi.ulfm:
            shown.note(without_ulfm(options, mpi))
        if options.plane == "nccl":
            for line in gpu_lines(options.ranks, options.spares, gpus, options.standby):
                shown.note(line)
        runner = _Job(options, mpi, job, directory, audit, shown, gpus.number, hosts)
        report = runner.run(stop, first)
        write_report(report, options.json_file, shown)
    return report


class _Job:
    """The attempts of one job."""

    def __init__(
        self,
        options: Options,
        mpi: Mpi,
        job: str,
        directory: Path,
        audit: Callable[[Path], dict[str, Any]],
        screen: PlainScreen,
        gpus: int = 0,
        hosts: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._mpi = mpi
        self._audit = audit
        self._screen = screen
        self._directory = directory
        self._events = Events(directory / "run")
        self._gpus = gpus
        self.hosts = hosts
        self._several = bool(hosts)
        self.report = Report(EXIT_IMPOSSIBLE, job, str(directory))

    def run(self, stop: Stop, first: int) -> Report:
        last = first + restarts(self._options, self._mpi)
        for attempt in range(first, last + 1):
            verdict = self._attempt(attempt, stop)
            if verdict.kind == "failed" and attempt < last and not stop.signum:
                verdict = self._prepare_next(attempt, verdict, stop)
                if verdict.kind == "running":
                    continue
            break
        if stop.signum:
            return self._end(128 + stop.signum, verdict, stop)
        ends = {"done": EXIT_OK, "error": EXIT_PROGRAM}
        return self._end(ends.get(verdict.kind, EXIT_IMPOSSIBLE), verdict, stop)

    def _prepare_next(self, attempt: int, verdict: Verdict, stop: Stop) -> Verdict:
        """See whether another attempt can be made; 'running' if so."""
        if full := self._unusable():
            return Verdict("failed", f"{verdict.reason}; it cannot go on: {full}")
        self._screen.note(f"attempt {attempt} failed ({verdict.reason}); restarting")
        try:
            with stop.interrupts():
                self._leave_out_lost_hosts()
        except Stopped as stopped:
            return Verdict("failed", f"{stopped} between two attempts; go on with --resume")
        return Verdict("running")

    def _leave_out_lost_hosts(self) -> None:
        """Go on with the hosts that still answer."""
        if not self.hosts:
            return
        answers = ask(self._mpi.mpirun, self.hosts, self._directory)
        self.hosts, lost = answers.found, answers.silent + answers.blind
        self.hosts = [name for name in self.hosts if name not in lost]
        if lost:
            self._screen.note(
                f"{plural(len(lost), 'host')} lost: {', '.join(lost)}; going on with "
                f"{', '.join(self.hosts)}"
            )

    def _unusable(self) -> str:
        """Why the ledger's directory cannot take another attempt, empty if it can."""
        from ftrt.ledger.record import check_directory

        try:
            check_directory(
                self._directory, stable=self._options.stable, seen_elsewhere=self._several
            )
        except LedgerError as error:
            return str(error)
        return ""

    def _attempt(self, number: int, stop: Stop) -> Verdict:
        options = self._grown(number)
        make_reserve(self._directory / "run")
        place = Place(list(self.hosts))
        settings = _settings(
            options, self._mpi, self.report.job, self._directory, number, self._gpus
        )
        processes = options.ranks + int(settings["FTRT_SPARES"])
        shared = str(mpi_directory(self.report.job))
        env = environment(settings | place.settings)
        where = place.options(processes, env)
        attempt = Attempt(
            command(self._mpi, processes, options.program, options.args, shared, where),
            env,
            self._directory,
            options.ranks,
            self._events,
            self._screen,
            place,
        )
        began_s = time.time()
        verdict = attempt.run(stop)
        if self._mpi.hydra:
            sweep_mpich(began_s)
        self.report.attempts = number
        self.report.digest = attempt.output.digest or self.report.digest
        self.report.ranks = [record for _, record in sorted(attempt.records.items())]
        if verdict.traceback and not attempt.output.tracebacks.was_shown(verdict.traceback):
            self._screen.err(verdict.traceback.rstrip())
        return verdict

    def _grown(self, number: int) -> Options:
        """The options with the spares that `ftrt grow` asked for, told when there are new ones."""
        more = grown(self._directory) if self._mpi.ulfm else 0
        options = self._options
        if more > self.report.grown:
            spares = plural(options.spares + more, "spare")
            self._screen.note(f"attempt {number} has {spares}: {more} by ftrt grow")
        self.report.grown = more
        return replace(options, spares=options.spares + more)

    def _end(self, status: int, verdict: Verdict, stop: Stop) -> Report:
        report = self.report
        report.exit, report.reason = status, verdict.reason
        report.epochs = len(list((self._directory / "epochs").glob("*.json")))
        report.faults = [event for event in self._events.seen if event.get("event") == "fault"]
        report.recoveries = [e for e in self._events.seen if e.get("event") == "recovery"]
        report.shrunk = [event for event in self._events.seen if event.get("event") == "shrunk"]
        report.depleted = [e for e in self._events.seen if e.get("event") == "depleted"]
        if status == EXIT_OK:
            report.outcome = outcome_of(report)
        if (report.faults or report.recoveries) and status <= EXIT_IMPOSSIBLE:
            self._screen.note(summary_line(report))
        if status == EXIT_OK:
            self._audit_it(stop)
        if report.exit != EXIT_OK:
            self._screen.note(f"exit {report.exit}: {report.reason}")
        return report

    def _audit_it(self, stop: Stop) -> None:
        report = self.report
        try:
            with stop.interrupts():
                report.audit = self._audited()
        except Stopped as stopped:
            report.exit = 128 + stopped.signum
            report.reason = (
                f"{stopped} in the audit; the work is done, `ftrt audit {self._directory}` proves "
                "what took effect"
            )
            return
        self._screen.note(audit_line(report.audit))
        if not report.audit.get("ok"):
            report.exit, report.reason = EXIT_PROGRAM, unclean(report.audit)

    def _audited(self) -> dict[str, Any]:
        try:
            return self._audit(self._directory)
        except LedgerError as error:
            return {"ok": False, "error": str(error)}


def restarts(options: Options, mpi: Mpi) -> int:
    """How often the job may begin again from the ledger: without ULFM in place of spares, too."""
    return options.restarts + (0 if mpi.ulfm else options.spares)


def without_ulfm(options: Options, mpi: Mpi) -> str:
    """What a run with an MPI says at its start that cannot outlive the death of a process."""
    said = f"{mpi.name} is used without ULFM: a death ends the attempt, and all ranks begin again "
    count = restarts(options, mpi)
    if not count:
        return f"{said}from the ledger with --restarts R, or later with --resume"
    spares = f", one for each spare: none of {options.spares} waits" if options.spares else ""
    return f"{said}from the ledger, {plural(count, 'time')} at most{spares}"


def _names(options: Options) -> list[str]:
    """The hosts that were named, this one first; empty for this one alone."""
    names = named(options.hosts)
    if not names:
        return []
    names = own_first(names)
    if options.plane == "nccl" and len(names) > 1:
        raise UsageError("--plane nccl is for one host in this version: leave --hosts out")
    return names if len(names) > 1 else []


def _hosts(names: list[str], mpirun: str, directory: Path) -> list[str]:
    """Those of the named hosts to begin on; all must answer and see the ledger's directory."""
    if not names:
        return []
    from ftrt.ledger.record import check_directory

    check_directory(directory)
    answers = ask(mpirun, names, directory)
    if answers.silent:
        raise UsageError(
            f"mpirun starts nothing on {', '.join(answers.silent)}: try `{mpirun} --host "
            f"{answers.silent[0]} hostname`, or leave it out of --hosts; nothing has run"
        )
    if answers.blind:
        raise LedgerError(
            f"{directory}: what this host writes there is not seen by {', '.join(answers.blind)}; "
            "choose a directory that all hosts share"
        )
    return answers.found if len(answers.found) > 1 else []


def _settings(
    options: Options, mpi: Mpi, job: str, directory: Path, attempt: int, gpus: int
) -> dict[str, str]:
    """What the processes of an attempt find in their environment."""
    settings = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
    if _SESSION not in os.environ:
        settings[_SESSION] = str(mpi_directory(job))
    for name in ("stall_timeout_s", "evict_timeout_s"):
        if (value := getattr(options, name)) is not None:
            settings[f"FTRT_{name.upper()}"] = str(value)
    return settings | {
        "FTRT_LAUNCHER": "run",
        "FTRT_LAUNCHER_PID": str(os.getpid()),
        "FTRT_LEDGER": str(directory),
        "FTRT_JOB": job,
        "FTRT_ATTEMPT": str(attempt),
        "FTRT_RANKS": str(options.ranks),
        "FTRT_SPARES": str(options.spares if mpi.ulfm else 0),  # they could not take over
        "FTRT_ULFM": str(int(mpi.ulfm)),
        "FTRT_MIN_RANKS": str(options.min_ranks or "") if mpi.ulfm else "",
        "FTRT_HEIRS": _policy(options.heirs) if mpi.ulfm else "",
        "FTRT_STABLE": options.stable,
        "FTRT_PLANE": options.plane,
        "FTRT_STANDBY": str(options.standby),
        "FTRT_GPUS": str(gpus),
        # The same list in every attempt: the job keeps book of the ones that have happened.
        "FTRT_FAULTS": json.dumps([asdict(fault) for fault in options.faults]),
        "FTRT_SEED": str(options.seed),
    }


def _policy(spec: str | None) -> str:
    """Name the policy for heirs such that it is found from any folder."""
    if not spec:
        return ""
    from ftrt.host.policy import parse

    path, name = parse(spec)
    return f"{path}:{name}"


def _audit(directory: Path) -> dict[str, Any]:
    from ftrt.ledger.audit import audit

    return audit(directory)
