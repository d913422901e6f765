"""Hosts for tests, made of namespaces and removed again: network, mount, PID, UTS and IPC.

Each has its own ``/dev/shm``, ``/tmp``, host name and process numbers, so that what works on one
host only fails between two. They share a directory, and a bridge joins them. The first process of
a PID namespace is the host: when it is killed the kernel ends all the others at once, which is
what a host that loses power looks like to the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TOOLS = ("unshare", "nsenter", "ip", "mount", "umount")
_MADE_WITHIN_S = 10.0
_PR_SET_PDEATHSIG = 1
_KINDS = ("net", "mnt", "pid", "uts", "ipc")

# What the host shall see of /tmp is put into the new one before that covers the old.
_HOST = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
for path in $3; do
    mkdir -p "/mnt$path"
    mount --bind "$path" "/mnt$path"
done
mkdir -p /mnt/tmp
mount -t proc proc /proc
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount --bind "$1/hosts" /etc/hosts
hostname "$2"
mount --rbind /mnt/tmp /tmp
ip link set lo up
exec "$4" -I -S "$5" serve "$1/host-$2"
"""

# mpirun calls it as it would call ssh: a host, then a command line.
_SSH = """#!/bin/sh
exec {python} -I -S {script} ask {directory} "$@"
"""
_SCRIPT = Path(__file__).with_name("first_process.py")
_CACHED = Path(__file__).with_name("cached_fs.py")


@dataclass
class Host:
    """One of the hosts.

    Attributes
    ----------
    name : str
    address : str
    pid : int
        Its first process, as seen from outside.
    """

    name: str
    address: str
    pid: int = 0
    _holder: subprocess.Popen | None = field(default=None, repr=False)
    _cache: subprocess.Popen | None = field(default=None, repr=False)

    def command(self, *words: object) -> list[str]:
        """The command line that runs ``words`` there."""
        where = [f"--{'mount' if kind == 'mnt' else kind}" for kind in _KINDS]
        return ["nsenter", "--target", str(self.pid), *where, "--", *map(str, words)]

    def run(self, *words: object, limit_s: float = 10.0) -> str:
        """Run a command there to its end; its output."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=limit_s, check=True
        )
        return done.stdout

    @property
    def alive(self) -> bool:
        """Whether it was not killed."""
        return self._holder is not None and self._holder.poll() is None

    def kill(self) -> None:
        """End the host at once, with all that runs there and all that only its memory has."""
        if self._cache is not None:  # first, so that nothing is written on the way out
            for child in _children(self._cache.pid):
                os.kill(child, signal.SIGKILL)
            self._cache.wait(_MADE_WITHIN_S)
        if self._holder is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._holder.wait(_MADE_WITHIN_S)

    def link(self, up: bool) -> None:
        """Cut the host off from all others, or join it again."""
        self.run("ip", "link", "set", "eth0", "up" if up else "down")

    def slow(self, bits_per_s: int) -> None:
        """Limit what leaves the host."""
        self.run(
            *("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf"),
            *("rate", f"{bits_per_s}bit", "burst", "16kb", "latency", "400ms"),
        )


@dataclass
class Hosts:
    """Some hosts on one bridge.

    Attributes
    ----------
    shared : Path
        A directory that all of them see, at the same place.
    outside : Path
        The same directory as it is outside.
    ssh : Path
        What ``PRTE_MCA_plm_ssh_agent`` may name.
    """

    hosts: list[Host]
    shared: Path
    outside: Path
    ssh: Path

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    @property
    def names(self) -> str:
        """As ``--hosts`` takes them."""
        return ",".join(host.name for host in self.hosts)

    @property
    def environment(self) -> dict[str, str]:
        """What mpirun needs to start processes on them."""
        return {
            "PRTE_MCA_plm": "ssh",
            "PRTE_MCA_plm_ssh_agent": str(self.ssh),
            **self.links,
        }

    @property
    def links(self) -> dict[str, str]:
        """What joins them, for MPI."""
        return {"PRTE_MCA_prte_if_include": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth0"}


def reason_not() -> str:
    """Why hosts cannot be made here, empty if they can."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed"
    if os.geteuid() != 0:
        return "namespaces with a network of their own need root"
    flags = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork"]
    probe = "ip link add v0 type veth peer name v1 && ip link add br0 type bridge"
    done = subprocess.run(["unshare", *flags, "sh", "-c", probe], capture_output=True, text=True)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


@contextlib.contextmanager
def hosts(
    names: Sequence[str], visible: Sequence[Path] = (), *, cached: bool = False
) -> Iterator[Hosts]:
    """Make hosts of these names, and end them with all that runs there.

    Parameters
    ----------
    names : sequence of str
    visible : sequence of Path
        Directories below ``/tmp`` that they see nevertheless.
    cached : bool
        Each host sees the shared directory through a cache of its own.
    """
    directory = Path(tempfile.mkdtemp(prefix="ftrt-hosts-"))
    made = [Host(name, f"10.77.0.{index + 1}") for index, name in enumerate(names)]
    switch = None
    try:
        shared = directory / "shared"
        outside = directory / "backing" if cached else shared
        for path in {shared, outside}:
            path.mkdir()
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in made)]
        (directory / "hosts").write_text("\n".join(lines) + "\n")
        ssh = directory / "ssh"
        words = {"python": sys.executable, "script": _SCRIPT, "directory": directory}
        ssh.write_text(_SSH.format(**{k: shlex.quote(str(w)) for k, w in words.items()}))
        ssh.chmod(0o755)
        switch = subprocess.Popen(["unshare", "--net", "sleep", "86400"], preexec_fn=_end_with_us)
        _await(lambda: _differs(switch.pid, "net"), "the switch")
        _ip(switch.pid, "link add bridge type bridge")
        _ip(switch.pid, "link set bridge up")
        seen = [directory, *visible, _SCRIPT.parent, Path(sys.prefix)]
        seen = sorted({path.resolve() for path in seen if path.resolve().is_relative_to("/tmp")})
        for index, host in enumerate(made):
            _start(host, index, directory, seen, switch.pid)
            if cached:
                words = [sys.executable, "-I", "-S", str(_CACHED), str(outside), str(shared)]
                host._cache = subprocess.Popen(host.command(*words), stdout=subprocess.PIPE)
                assert host._cache.stdout is not None and host._cache.stdout.readline()
        yield Hosts(made, shared, outside, ssh)
    finally:
        for host in made:
            host.kill()
        if switch is not None:
            switch.kill()
            switch.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _start(host: Host, index: int, directory: Path, seen: Sequence[Path], switch: int) -> None:
    flags = [f"--{'mount' if kind == 'mnt' else kind}" for kind in _KINDS]
    words = ["sh", "-c", _HOST, "host", str(directory), host.name, " ".join(map(str, seen))]
    words += [sys.executable, str(_SCRIPT)]
    with open(directory / f"log-{host.name}", "w") as log:
        begin = ["unshare", *flags, "--fork", "--kill-child", *words]
        host._holder = holder = subprocess.Popen(
            begin, stdin=subprocess.DEVNULL, stderr=log, preexec_fn=_end_with_us
        )
    _await(lambda: (directory / f"host-{host.name}").exists(), f"host {host.name}")
    host.pid = _children(holder.pid)[0]
    _ip(switch, f"link add v{index} type veth peer name eth0 netns {host.pid}")
    _ip(switch, f"link set v{index} master bridge up")
    host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
    host.run("ip", "link", "set", "eth0", "up")


def _end_with_us() -> None:
    """In a child: be killed when whoever makes the hosts is, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _ip(pid: int, words: str) -> None:
    subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", *words.split()], check=True)


def _differs(pid: int, kind: str) -> bool:
    return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")


def _await(ready, what: str) -> None:
    end = time.monotonic() + _MADE_WITHIN_S
    while not ready():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come up within {_MADE_WITHIN_S:g} s")
        time.sleep(0.005)
