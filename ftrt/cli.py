"""The ``ftrt`` command: thin, every command calls one function of the package."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import sys
from typing import Any

import click

from ftrt import __version__
from ftrt.bench import benchmarks, description
from ftrt.errors import FtrtError, LedgerError, UsageError

EXIT_USAGE, EXIT_IMPOSSIBLE = 2, 3

#: Spread of the raw figure beyond which a benchmark's ratio says little.
NOISY = 0.1


class _Group(click.Group):
    """Turns an error of the package into one sentence and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FtrtError as error:
            click.echo(f"ftrt: {error}", err=True)
            usage = isinstance(error, (UsageError, LedgerError))
            ctx.exit(EXIT_USAGE if usage else EXIT_IMPOSSIBLE)
        except PermissionError as error:
            # pathlib's questions (exists, is_dir) raise it below a directory that is closed to us.
            if error.filename is None:
                raise
            click.echo(
                f"ftrt: {error.filename}: user {os.geteuid()} may not; choose another path, or "
                "have its permissions changed",
                err=True,
            )
            ctx.exit(EXIT_USAGE)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ftrt")
def main() -> None:
    """Message streams for MPI jobs in which every message takes effect exactly once."""


@main.command(
    short_help="Run a program on N ranks, with spares.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-n", "ranks", type=int, required=True, help="Number of ranks.")
@click.option(
    "--spares",
    type=int,
    default=0,
    show_default=True,
    help="Processes that wait to replace a dead rank.",
)
@click.option(
    "--min-ranks",
    type=int,
    default=0,
    help="Go on with so few processes once no spare is left, if the program takes over the streams "
    "of dead ranks; by default as many as ranks.",
)
@click.option(
    "--heirs",
    metavar="FILE:NAME",
    help="Policy for --min-ranks: a function (lost, living, streams) that names an heir for each "
    "lost rank.",
)
@click.option(
    "--restarts",
    type=int,
    default=0,
    show_default=True,
    help="How often the whole job may start again from the ledger.",
)
@click.option(
    "--stable",
    type=click.Choice(["process", "host", "power"]),
    default="process",
    show_default=True,
    help="The failure that an acknowledged effect survives.",
)
@click.option(
    "--plane",
    type=click.Choice(["host", "nccl"]),
    default="host",
    show_default=True,
    help="What carries the data: host memory and MPI, or NCCL between GPUs.",
)
@click.option(
    "--standby",
    type=int,
    default=1,
    show_default=True,
    help="Connected NCCL communicators kept ready for each future peer; 0 for none.",
)
@click.option(
    "--ledger", metavar="DIR", help="Where the ledger is kept; a new folder here by default."
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the job in --ledger, whose launcher has ended: type the command that began "
    "it, and this.",
)
@click.option(
    "--fault",
    "faults",
    metavar="SPEC",
    multiple=True,
    help="Inject a fault: KIND:RANK@WHEN[+FOR], for example kill:1@200msg "
    "or stop:2@2s+800ms. Repeats.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Given to the program as FTRT_SEED."
)
@click.option("--json", "json_file", metavar="FILE", help="Write a report of the run here.")
@click.option(
    "--hosts",
    metavar="A,B,...|FILE",
    help="Run on these hosts, this one among them; in a Slurm allocation on its nodes by default.",
)
@click.option("--mpirun", metavar="PATH", help="The mpirun to use; also FTRT_MPIRUN.")
@click.option(
    "--stall-timeout-s",
    type=float,
    help="Replace a rank that runs this long without a call into ftrt (600).",
)
@click.option("--evict-timeout-s", type=float, help="Evict a suspected rank after this long.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(faults: tuple[str, ...], **options: Any) -> None:
    """Start PROGRAM, a Python file or executable, on N ranks under mpirun.

    Exit status: 0 all ranks are done and the audit is clean; 1 the program failed or the audit
    found a loss or a duplicate; 2 usage; 3 recovery was impossible; 130, 143 stopped by Ctrl-C or
    SIGTERM.
    """
    # Until the launcher takes it as an order, Ctrl-C ends us like any signal, without a traceback.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.exit(_run(faults, options))
    finally:
        signal.signal(signal.SIGINT, before)


def _run(faults: tuple[str, ...], options: dict[str, Any]) -> int:
    from ftrt.launch.faults import parse_fault
    from ftrt.launch.options import Options
    from ftrt.launch.run import run_job
    from ftrt.launch.stop import Stopped

    try:
        return run_job(Options(faults=[parse_fault(spec) for spec in faults], **options)).exit
    except Stopped as stopped:
        click.echo(f"ftrt: {stopped} before anything was started", err=True)
        return 128 + stopped.signum


@main.command(short_help="Give a job more spares from its next attempt on.")
@click.argument("directory", metavar="DIR")
@click.argument("spares", metavar="K", type=int)
def grow(directory: str, spares: int) -> None:
    """Give the job in DIR, a ledger folder, K spares more, and say when they come.

    Exit status: 0 it is noted; 2 usage.
    """
    from pathlib import Path

    from ftrt.launch.grow import grow as grow_job

    click.echo(f"ftrt: {grow_job(Path(directory), spares)}")


@main.command(short_help="Prove from a ledger what took effect, and how often.")
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
def audit(directory: str, as_json: bool) -> None:
    """Check from the ledger files alone that every message in DIR took effect exactly once.

    Exit status: 0 clean; 1 a loss, a duplicate or an open stream; 2 unreadable.
    """
    from pathlib import Path

    from ftrt.ledger.audit import audit as audit_ledger

    found = audit_ledger(Path(directory))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_audit(found)
    sys.exit(0 if found["ok"] else 1)


def _print_audit(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ftrt.launch.summary import audit_line

    console = Console(highlight=False)
    if not console.is_terminal or console.width > 80:
        console = Console(highlight=False, width=80)
    table = Table(box=None, pad_edge=False)
    table.add_column("stream", overflow="fold")
    columns = ("source", "sent", "consumed", "dropped", "duplicates", "losses", "closed")
    for name in columns:
        table.add_column(name, justify="right")
    for stream in found.get("streams", []):
        cells = [_cell(stream.get(name)) for name in columns]
        bad = any(stream.get(name) for name in ("losses", "duplicates", "unsent"))
        bad = bad or not stream.get("closed", True)
        table.add_row(str(stream.get("stream")), *cells, style="red" if bad else None)
    console.print(table)
    console.print(audit_line(found), style="green" if found["ok"] else "red", markup=False)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(len(value)) if isinstance(value, (list, tuple)) else str(value)


@main.command(short_help="Try beforehand what a job needs here.")
@click.option("-n", "ranks", type=int, default=2, show_default=True, help="Ranks and spares.")
@click.option("--ledger", metavar="DIR", help="Where the ledger is to be; here by default.")
@click.option("--mpirun", metavar="PATH", help="The mpirun to use; also FTRT_MPIRUN.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(ranks: int, ledger: str | None, mpirun: str | None, as_json: bool) -> None:
    """Try beforehand, with real processes and files, what a job needs on this host.

    Exit status: 0 nothing failed; 1 something did, and what to type is shown; 2 usage.
    """
    from ftrt.doctor.command import command

    sys.exit(command(click.echo, ranks, ledger, mpirun, as_json))


@main.command(short_help="Draw a campaign, or the job in a ledger.")
@click.argument("directory", metavar="DIR")
@click.option("--out", metavar="FOLDER", help="Where the files go; DIR/report by default.")
def report(directory: str, out: str | None) -> None:
    """Draw what is in DIR, a campaign's folder or a job's ledger: PNG figures and one HTML page.

    The page needs no network and no other file. Drawing takes the extra `plot` (matplotlib).
    """
    from ftrt.report import report as draw

    for path in draw(directory, out):
        click.echo(str(path))


@main.command(short_help="One timeline of all ranks, for Perfetto.")
@click.argument("directory", metavar="DIR")
@click.option("--out", metavar="FILE", help="The file; DIR/report/trace.json by default.")
def trace(directory: str, out: str | None) -> None:
    """Write the job in DIR as one timeline: epochs, recoveries by phase, faults, messages.

    The file opens in Perfetto (ui.perfetto.dev) and in chrome://tracing.
    """
    from pathlib import Path

    from ftrt.view.trace import write_trace

    click.echo(str(write_trace(Path(directory), Path(out) if out else None)))


@main.command(short_help="Watch a job while it runs.")
@click.argument("directory", metavar="DIR")
def top(directory: str) -> None:
    """Show the job in DIR while it runs, and how it ended; without a terminal, once.

    It reads what the job keeps for itself in shared memory, on the host of the launcher.
    """
    from pathlib import Path

    from ftrt.view.top import command

    command(Path(directory))


@main.command(short_help="Run the recovery against simulated faults.")
@click.option("--ranks", type=int, default=4, show_default=True, help="Ranks of the job.")
@click.option("--seeds", type=int, default=1000, show_default=True, help="How many seeds to run.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first of them.")
@click.option("--shrink", is_flag=True, help="Jobs that go on with fewer processes, on one host.")
@click.option("--workers", type=int, help="Processes to run them in; by default one per core.")
@click.option("--save", metavar="FILE", help="Write the first bad seed, made small, here.")
@click.option("--replay", metavar="FILE", help="Run a case that --save wrote, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sim(**options: Any) -> None:
    """Run the recovery against simulated faults, each seed a job of its own.

    Exit status: 0 no promise was broken; 1 one was (the first bad seed is told); 2 usage.
    """
    from ftrt.sim.command import command

    sys.exit(command(click.echo, **options))


@main.command(short_help="Random faults against real jobs.")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=0, show_default=True, help="All chance comes from it.")
@click.option("--job", type=int, help="Run this job of the storm once, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def storm(minutes: float, seed: int, job: int | None, as_json: bool) -> None:
    """Random faults against real jobs: a plain stream and the rollout program.

    Exit status: 0 nothing was lost, duplicated, hung or left behind; 1 something was; 2 usage.
    """
    from ftrt.storm.command import command

    sys.exit(command(click.echo, minutes, seed, job, as_json))


@main.command(short_help="The paper's faults, trial by trial, under two rules.")
@click.option(
    "--plane",
    "planes",
    type=click.Choice(["host", "nccl"]),
    multiple=True,
    default=["host"],
    show_default=True,
)
@click.option(
    "--path",
    "paths",
    type=click.Choice(["eager", "graph", "revoke"]),
    multiple=True,
    default=["eager", "graph", "revoke"],
    show_default=True,
)
@click.option(
    "--fault",
    "faults",
    type=click.Choice(["kill", "abort", "pause", "link"]),
    multiple=True,
    default=["kill", "abort", "pause", "link"],
    show_default=True,
)
@click.option(
    "--rule",
    "rules",
    type=click.Choice(["completion", "consumption"]),
    multiple=True,
    help="What decides what is sent again; both by default.",
)
@click.option("--size", "sizes", type=int, multiple=True, help="Bytes of a message (16, 65536).")
@click.option("--trials", type=int, default=210, show_default=True, help="Injections in a cell.")
@click.option("--kills", type=int, help="The same where a process is replaced (as --trials).")
@click.option("--controls", type=int, default=40, show_default=True, help="Runs without a fault.")
@click.option("--messages", type=int, help="Messages of a trial (1024, or 512 long ones).")
@click.option(
    "--interval-us", type=int, help="Time between two messages (32, or 40 for long ones)."
)
@click.option("--seed", type=int, default=0, show_default=True, help="All chance comes from it.")
@click.option("--jobs", type=int, help="Jobs side by side (as many as the cores can take).")
@click.option("--budget-s", type=float, help="End after so long; the same command goes on.")
@click.option("--out", metavar="DIR", help="Folder of the campaign; one that was begun goes on.")
@click.option("--replay", "replayed", metavar="SEED:TRIAL", help="Run one trial, all logged.")
@click.option("--json", "as_json", is_flag=True, help="Print campaign.json.")
def campaign(**options: Any) -> None:
    """Inject the faults of the paper trial by trial and count what was lost and duplicated.

    An option that repeats makes a table of cells. Rule `completion` is the paper's baseline: the
    sender sends again what it has not seen complete. Rule `consumption` is what ftrt does.

    Exit status: 0 all ran, the accounts agree, nothing was lost or duplicated under consumption;
    1 something was; 2 usage.
    """
    from ftrt.campaign.command import command

    sys.exit(command(click.echo, **options))


@click.group(short_help="Measure ftrt against the plain way to do the same.")
def bench() -> None:
    """Measure ftrt against the plain way to do the same, alternating in one run."""


#: What ``ftrt bench --help`` says, in a line; their own help says it whole.
_BENCHMARKS = {
    "agree": "An agreement that carries marks against MPI's own.",
    "ledger": "A commit against a plain store into a mapped file.",
    "mpi": "A stream over MPI against windowed MPI over TCP.",
    "recovery": "SIGKILL until the first effect of the replacement.",
    "slots": "A check of slots against a copy of their bytes.",
    "stream": "A stream on one host against windowed MPI or NCCL.",
}


def _add_benchmark(name: str) -> None:
    @bench.command(name, help=description(name), short_help=_BENCHMARKS.get(name))
    @click.option("--plane", default="host", show_default=True, help="What carries the data.")
    @click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
    def measure(plane: str, as_json: bool) -> None:
        module = importlib.import_module(f"ftrt.bench.{name}")
        takes_plane = "plane" in inspect.signature(module.rows).parameters
        if plane != "host" and not takes_plane:
            raise UsageError(f"benchmark {name} has no plane to choose: leave --plane out")
        rows = module.rows(plane=plane) if takes_plane else module.rows()
        if as_json:
            click.echo(json.dumps({"rows": rows}, indent=2))
        else:
            _print_rows(rows)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("what", "unit") else "right")
    for row in rows:
        table.add_row(
            *(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row.values())
        )
    console = Console(highlight=False, width=80)
    console.print(table)
    noisy = [row["what"] for row in rows if row.get("spread", 0) > NOISY]
    if noisy:
        console.print(f"raw itself spread by more than {NOISY:.0%} in: {', '.join(noisy)}")


for _name in benchmarks():
    _add_benchmark(_name)
if bench.commands:
    main.add_command(bench)


if __name__ == "__main__":
    main()
