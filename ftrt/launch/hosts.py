"""The hosts of a job: which were named, which answer, and what mpirun needs to start there."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ftrt.errors import LedgerError, UsageError
from ftrt.ledger import identity
from ftrt.ledger.identity import host_identity

_ANSWERS_WITHIN_S = 20.0
_AT_A_TIME = 8
#: What a rank on another host gets of this process's environment, besides its settings.
_PASSED_ON = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")
_PASSED_PREFIXES = ("FTRT_", "NUMBA_", "OPENBLAS_", "OMP_", "MKL_", "CUDA_", "NCCL_")


def named(option: str | None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The hosts that the command line or the Slurm allocation names; none for this host alone.

    Parameters
    ----------
    option : str or None
        Names with commas between them, or a file with a name in front of each line.

    Raises
    ------
    UsageError
        It names none, or one twice.
    """
    if option is None:
        return _of_slurm(environment)
    names = [name.strip() for name in option.split(",")]
    if len(names) == 1 and Path(names[0]).is_file():
        lines = (line.partition("#")[0].split() for line in Path(names[0]).read_text().splitlines())
        names = [words[0] for words in lines if words]
    if not all(names) or not names:
        raise UsageError(f"--hosts {option!r} names no host; for example --hosts node1,node2")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--hosts names {name} twice: one agent serves all ranks of a host")
        if ":" in name or "/" in name:
            raise UsageError(
                f"--hosts: {name!r} is neither a host nor a file; ranks are spread evenly, so "
                "leave numbers of slots out"
            )
    return names


def _of_slurm(environment: Mapping[str, str]) -> list[str]:
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes or environment.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return []
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"the nodes of this Slurm allocation ({nodes}) cannot be listed: {error}; name them "
            "with --hosts"
        ) from error
    return done.stdout.split()


def own_first(names: Sequence[str]) -> list[str]:
    """The same hosts, this one first: mpirun and the launcher run here.

    Raises
    ------
    UsageError
        This host is none of them.
    """
    here = next((name for name in names if _is_here(name)), None)
    if here is None:
        raise UsageError(
            f"this host ({socket.gethostname()}) is none of {', '.join(names)}: start the job on "
            "one of its hosts, where mpirun runs too"
        )
    return [here, *(name for name in names if name != here)]


def _is_here(name: str) -> bool:
    mine = socket.gethostname()
    slurm = os.environ.get("SLURMD_NODENAME")  # a node's name need not be its host's
    if name in (mine, mine.partition(".")[0], "localhost", slurm):
        return True
    try:
        address = socket.gethostbyname(name)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))  # only an address of this host can be bound
        return True
    except OSError:
        return False


@dataclass(frozen=True)
class Answers:
    """Which hosts of a job answer.

    Attributes
    ----------
    found : list of str
        Those that mpirun reaches, each machine once, the first one first.
    silent : list of str
        Those that it does not reach.
    blind : list of str
        Those found that do not see what was written into the ledger's directory.
    """

    found: list[str]
    silent: list[str]
    blind: list[str]


def ask(mpirun: str, names: Sequence[str], directory: Path) -> Answers:
    """Ask each host, the first one is this, who it is and whether it sees ``directory``.

    Two names with the same memory and processes are one host: one agent serves it. What is
    looked for is stored into a mapped file and synced, as ledgers are.
    """
    others = list(names[1:])
    with _trial(directory) as (path, digest):
        told = _ask(mpirun, others, path)
        if len(told) < len(others):
            with ThreadPoolExecutor(_AT_A_TIME) as pool:
                missing = [name for name in others if name not in told]
                for answer in pool.map(lambda name: _ask(mpirun, [name], path), missing):
                    told |= answer
    known, found = {host_identity().hex()}, [names[0]]
    for name in others:
        if name in told and told[name][0] not in known:
            known.add(told[name][0])
            found.append(name)
    silent = [name for name in others if name not in told]
    return Answers(found, silent, [name for name in found[1:] if told[name][1] != digest])


@contextlib.contextmanager
def _trial(directory: Path) -> Iterator[tuple[Path, str]]:
    """A file that was written as ledgers are, and the digest of what it holds."""
    path = directory / f".probe-{uuid.uuid4().hex}"
    try:
        with open(path, "xb+") as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            with mmap.mmap(file.fileno(), mmap.PAGESIZE) as view:
                view[:32] = secrets.token_bytes(32)
                os.fdatasync(file.fileno())
                digest = hashlib.blake2b(view[:], digest_size=16).hexdigest()
        yield path, digest
    except OSError as error:
        raise LedgerError(f"{directory}: cannot be written ({error.strerror})") from error
    finally:
        path.unlink(missing_ok=True)


def _ask(mpirun: str, names: Sequence[str], path: Path) -> dict[str, tuple[str, str]]:
    """Identity of each host and digest of the file there; none if any does not answer."""
    if not names:
        return {}
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    hosts = ["--host", ",".join(f"{name}:1" for name in names)]
    where = [*hosts, "--map-by", "node", "--bind-to", "none", "-n", str(len(names))]
    command = [mpirun, *as_root, *where, sys.executable, "-S", str(identity.__file__), str(path)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = (line.split() for line in done.stdout.splitlines())
    by_rank = {w[1]: (w[2], w[3]) for w in lines if len(w) == 4 and w[0] == "ftrt-host"}
    if len(by_rank) < len(names):
        return {}
    return {name: by_rank[str(rank)] for rank, name in enumerate(names)}


@dataclass
class Place:
    """Where one attempt runs, and how its agents meet.

    Attributes
    ----------
    names : list of str
        The hosts, this one first; empty for this one alone.
    alone : str
        This host, where it is all that is left of several: mpirun would try the others, too.
    """

    names: list[str]
    alone: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    listener: socket.socket | None = None

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            self.alone, self.names = "".join(self.names), []
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.names[1], 9))
            address = probe.getsockname()[0]
        self.listener = socket.create_server((address, 0), backlog=256)

    @property
    def settings(self) -> dict[str, str]:
        """For the environment of all processes."""
        if self.listener is None:
            return {}
        address, port = self.listener.getsockname()[:2]
        return {
            "FTRT_HOSTS": ",".join(self.names),
            "FTRT_HEAD": f"{address}:{port}",
            "FTRT_TOKEN": self.token,
        }

    def options(self, processes: int, environment: Mapping[str, str]) -> list[str]:
        """For mpirun: process i on host i modulo their number, with the settings of all."""
        if not self.names:
            return ["--host", f"{self.alone}:{processes}"] if self.alone else []
        slots = -(-processes // len(self.names))
        passed = sorted(
            name for name in environment if name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)
        )
        options = ["--host", ",".join(f"{name}:{slots}" for name in self.names)]
        options += ["--map-by", "node"]
        for name in passed:
            options += ["-x", name]
        return options

    def close(self) -> None:
        """Let go of the listener once the agent has it."""
        if self.listener is not None:
            self.listener.close()
