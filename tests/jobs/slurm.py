"""A Slurm of its own for the tests: several nodes on this machine, gone at the end.

Debian's packages suffice: ``slurm-wlm``, ``munge``, and ``libpmix-dev``, which mpirun's daemons do
not need, but ``srun --mpi=pmix`` does. All daemons run as root, in a folder of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGES = ("slurm-wlm", "munge", "libpmix-dev")
_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "sinfo", "squeue", "scancel")
_SBIN = "/usr/sbin:/sbin"

_CONFIGURATION = """
ClusterName=fake
SlurmctldHost={head}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={run}/spool-%n
TmpFS={run}/tmp-%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
MpiDefault=none
ReturnToService=1
SlurmdTimeout=5
KillWait=10
KillOnBadExit=0
JobRequeue=1
{requeue_exit}
MinJobAge=300
MessageTimeout=10
TCPTimeout=2
TreeWidth=65533
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here, empty if there can."""
    if os.geteuid() != 0:
        return "the tests start a Slurm of their own, which needs root"
    if os.environ.get("FTRT_INSTALL_SLURM") == "1" and _missing():
        _install()
    if missing := _missing():
        return f"no {', '.join(missing)} here: apt-get install -y {' '.join(PACKAGES)}"
    return ""


def _missing() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    return [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]


def _install() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        for words in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
            subprocess.run(
                ["apt-get", *words], env=environment, capture_output=True, timeout=300, check=True
            )


@dataclass
class Node:
    """Where a slurmd runs.

    Attributes
    ----------
    name : str
        Its name in Slurm.
    hostname, address : str
        Of its machine.
    enter : callable
        Makes a command line one that runs there.
    weight : int
        Jobs get nodes of little weight first.
    """

    name: str
    hostname: str = "localhost"
    address: str = "127.0.0.1"
    enter: Callable[..., list[str]] = lambda *words: [str(word) for word in words]
    weight: int = 1


class Slurm:
    """A cluster.

    Parameters
    ----------
    root : Path
        Folder of its files, which all its nodes see.
    nodes : sequence of Node
        Each has six cores as far as Slurm knows. The first one has the controller, too.
    run : Path, optional
        Folder that each machine has for itself; in ``root`` where there is one machine.
    requeue_exit : str
        The line of the configuration that names the statuses after which a job is queued again.
    """

    def __init__(
        self,
        root: Path,
        nodes: Sequence[Node] = (Node("n1"), Node("n2")),
        run: Path | None = None,
        requeue_exit: str = "RequeueExit=75",
    ) -> None:
        self._root, self._nodes, self._requeue_exit = root, nodes, requeue_exit
        self._run = run or root / "run"
        self._head = nodes[0]
        self._machines = list({node.address: node for node in nodes}.values())
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._configuration = root / "slurm.conf"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "FTRT_"))},
            "SLURM_CONF": str(self._configuration),
            "PATH": f"{os.environ['PATH']}:{_SBIN}",
        }

    def start(self, limit_s: float = 30.0) -> None:
        """Return once all nodes are idle."""
        self._write()
        for machine in self._machines:
            self._make_folders(machine)
            self._start_munge(machine, limit_s)
        self._daemon(self._head, "slurmctld", "-D", "-c", "-f", self._configuration)
        for node in self._nodes:
            self._daemon(node, "slurmd", "-D", "-c", "-f", self._configuration, "-N", node.name)
        self._await(self._is_idle, "the nodes", limit_s)

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.run("scancel", "--user=root", check=False)
            self._await(lambda: not self.run("squeue", "-h").strip(), "the last job", 15.0)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()
            daemon.wait()

    def run(self, *words: object, check: bool = True) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            self._head.enter(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def submit(self, directory: Path, *words: object, **environment: object) -> Job:
        """Queue ``sbatch WORDS`` in a directory, with more of an environment."""
        env = {**self.environment, **{name: str(value) for name, value in environment.items()}}
        done = subprocess.run(
            self._head.enter("env", f"--chdir={directory}", "sbatch", "--parsable", *words),
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip(), directory)

    def _write(self) -> None:
        self._root.chmod(0o755)  # munged wants to see that everybody reaches its socket
        for name in ("state", "log"):
            (self._root / name).mkdir()
        key = self._root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        ports = _free_ports(len(self._nodes) + 2)
        nodes = [
            f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} "
            f"Port={port} CPUs=6 RealMemory=1000 Weight={node.weight} State=UNKNOWN"
            for node, port in zip(self._nodes, ports[2:], strict=True)
        ]
        self._configuration.write_text(
            _CONFIGURATION.format(
                root=self._root,
                run=self._run,
                requeue_exit=self._requeue_exit,
                head=f"{self._head.hostname}({self._head.address})",
                ports=ports[:2],
                nodes="\n".join(nodes),
            )
        )

    def _make_folders(self, machine: Node) -> None:
        here = [node.name for node in self._nodes if node.address == machine.address]
        folders = [self._run / f"{kind}-{name}" for name in here for kind in ("spool", "tmp")]
        subprocess.run(machine.enter("mkdir", "-p", "-m", "755", self._run, *folders), check=True)

    def _start_munge(self, machine: Node, limit_s: float) -> None:
        munge = self._run / "munge"
        self._daemon(
            machine,
            *("munged", "--foreground", "--num-threads=2", f"--key-file={self._root}/munge.key"),
            *(f"--socket={munge}.sock", f"--pid-file={munge}.pid", f"--seed-file={munge}.seed"),
            f"--log-file={self._run}/munged.log",
        )
        words = machine.enter("test", "-S", f"{munge}.sock")
        self._await(lambda: not subprocess.run(words).returncode, "munged", limit_s)

    def _daemon(self, node: Node, *words: object) -> None:
        log = (self._root / "log" / f"{words[0]}-{len(self._daemons)}.out").open("wb")
        with log:
            self._daemons.append(
                subprocess.Popen(
                    node.enter(*words),
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _is_idle(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
        return states == ["idle"] * len(self._nodes)

    def _await(self, ready, what: str, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > end:
                logs = sorted((self._root / "log").iterdir())
                tails = "\n".join(f"{p.name}: {p.read_text()[-500:]}" for p in logs)
                raise AssertionError(f"{what} did not come within {limit_s} s\n{tails}")
            time.sleep(0.05)


class Job:
    """A job that was queued."""

    def __init__(self, slurm: Slurm, number: str, directory: Path) -> None:
        self._slurm, self.number, self._directory = slurm, number, directory

    @property
    def output(self) -> str:
        """What it has printed."""
        (path,) = [*self._directory.glob(f"*-{self.number}.out"), None][:1]
        return path.read_text() if path else ""

    @property
    def ledger(self) -> Path:
        """Where ``jobs/ftrt.sbatch`` has the ledger by default."""
        return self._directory / f"ledger-{self.number}"

    def facts(self) -> dict[str, str]:
        """What Slurm says of it."""
        text = self._slurm.run("scontrol", "--oneliner", "show", "job", self.number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def await_moment(self, reached, limit_s: float = 60.0) -> None:
        """Return once ``reached()`` is true."""
        end = time.monotonic() + limit_s
        while not reached():
            assert time.monotonic() < end, f"{self.facts()}\n{self.output}"
            time.sleep(0.02)

    def end(self, limit_s: float = 90.0) -> tuple[str, str]:
        """Its state and exit code (``STATUS:SIGNAL``) once it is over for good."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        facts: dict[str, str] = {}

        def is_over() -> bool:
            facts.update(self.facts())
            return facts["JobState"] in over

        self.await_moment(is_over, limit_s)
        return facts["JobState"], facts["ExitCode"]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


@contextlib.contextmanager
def cluster(root: Path, **options) -> Iterator[Slurm]:
    """A Slurm for as long as the block lasts; skips the test where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    slurm = Slurm(root, **options)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
