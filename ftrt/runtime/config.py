"""What a process is told by its launcher, read once from the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.transport.nccl.placement import check as check_gpus

#: ``FTRT_<NAME>_TIMEOUT_S`` sets each of them.
TIMEOUTS = ("STALL", "SUSPECT", "EVICT", "INIT", "CALL", "TRANSFER")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of one attempt, the same in every process of it.

    Attributes
    ----------
    shm : bool
        Streams go through shared memory; False (``FTRT_SHM=0``): over MPI, and MPI over TCP.
    plane : str
        ``"host"`` or ``"nccl"``, which moves arrays between GPUs.
    nccl_path : str
        See :class:`ftrt.transport.nccl.plane.NcclPlane`.
    standby : int
        Connected communicators kept ready for each process that may become a peer; 0 for none.
    gpus : int
        GPUs that the ranks share out among themselves (plane nccl).
    min_ranks : int
        The fewest processes with which the job goes on once no spare is left; 0: as many as ranks.
    heirs : str
        ``FILE:NAME`` of the policy that chooses heirs; see :mod:`ftrt.host.policy`.
    launched : bool
        ``ftrt run`` started the job and tells how it ends; otherwise the ranks do so themselves.
    launcher_pid : int or None
        Process of the launcher on this host: once it is gone, the agent ends the attempt.
    lock_fd : int or None
        Descriptor that holds the ledger's lock where no launcher does; handed on to the agent.
    ulfm : bool
        A death does not end the attempt: MPI has ULFM.
    hosts : tuple of str
        Where the job runs, the launcher's own first; empty for this host alone.
    host : int
        Which of them this is.
    head : (str, int) or None
        Where the agent of the first host listens.
    head_fd : int or None
        Descriptor at which it does, made by the launcher.
    token : str
        What agents of this job know and nobody else.
    """

    job: str
    ledger: Path
    attempt: int
    ranks: int
    spares: int
    stable: str = "process"
    faults: tuple[dict, ...] = ()
    seed: int = 0
    shm: bool = True
    plane: str = "host"
    nccl_path: str = "graph"
    standby: int = 1
    gpus: int = 0
    stall_timeout_s: float = 600.0
    suspect_timeout_s: float = 0.1
    evict_timeout_s: float = 5.0
    init_timeout_s: float = 120.0
    call_timeout_s: float = 660.0
    transfer_timeout_s: float = 5.0
    sync_interval_s: float = 0.1
    min_ranks: int = 0
    heirs: str = ""
    launched: bool = True
    launcher_pid: int | None = None
    lock_fd: int | None = None
    ulfm: bool = True
    hosts: tuple[str, ...] = ()
    host: int = 0
    head: tuple[str, int] | None = None
    head_fd: int | None = None
    token: str = dataclasses.field(default="", repr=False)

    @property
    def least(self) -> int:
        """The fewest processes if the job may shrink, else 0."""
        return self.min_ranks if 0 < self.min_ranks < self.ranks else 0

    @property
    def several(self) -> bool:
        """Whether the job runs on several hosts."""
        return len(self.hosts) > 1

    def host_of(self, process: int) -> int:
        """The host that a process runs on."""
        return process % len(self.hosts) if self.several else 0

    @property
    def own(self) -> list[int]:
        """The processes of this host."""
        return [p for p in range(self.processes) if self.host_of(p) == self.host]

    @property
    def durable(self) -> bool:
        """Whether the class of the job asks for more than a commit in memory."""
        return self.stable != "process"

    @property
    def processes(self) -> int:
        """Ranks and spares together."""
        return self.ranks + self.spares

    @property
    def run_directory(self) -> Path:
        """Where the processes of this attempt leave their results."""
        return self.ledger / "run" / f"attempt-{self.attempt}"

    @property
    def pids(self) -> Path:
        """Where the processes of this host leave their numbers, which mean nothing elsewhere."""
        return self.run_directory / (f"pids-{self.host}" if self.host else "pids")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Read the ``FTRT_*`` variables; :class:`UsageError` names the one that is wrong."""
        try:
            values: dict[str, Any] = {
                "job": environment["FTRT_JOB"],
                "ledger": Path(environment["FTRT_LEDGER"]),
                "attempt": int(environment.get("FTRT_ATTEMPT", "1")),
                "ranks": int(environment["FTRT_RANKS"]),
                "spares": int(environment.get("FTRT_SPARES", "0")),
                "stable": environment.get("FTRT_STABLE", "process"),
                "faults": tuple(json.loads(environment.get("FTRT_FAULTS", "[]"))),
                "seed": int(environment.get("FTRT_SEED", "0") or 0),
                "plane": environment.get("FTRT_PLANE") or "host",
                "nccl_path": environment.get("FTRT_NCCL_MODE") or "graph",
                "standby": int(environment.get("FTRT_STANDBY") or 1),
                "gpus": int(environment.get("FTRT_GPUS") or 0),
                "shm": _switch("FTRT_SHM", environment.get("FTRT_SHM") or "1"),
                "min_ranks": int(environment.get("FTRT_MIN_RANKS") or 0),
                "heirs": environment.get("FTRT_HEIRS", ""),
                "launched": environment.get("FTRT_LAUNCHER", "run") == "run",
                "launcher_pid": _launcher_of(environment),
                "ulfm": _switch("FTRT_ULFM", environment.get("FTRT_ULFM") or "1"),
                "lock_fd": _number(environment.get("FTRT_LOCK_FD")),
                "hosts": tuple(filter(None, environment.get("FTRT_HOSTS", "").split(","))),
                "host": int(environment.get("FTRT_HOST") or 0),
                "head": _address(environment.get("FTRT_HEAD")),
                "head_fd": _number(environment.get("FTRT_HEAD_FD")),
                "token": environment.get("FTRT_TOKEN", ""),
            }
        except KeyError as missing:
            raise UsageError(
                f"{missing.args[0]} is not set: start the program with "
                "`ftrt run -n N PROGRAM`, which sets up what a rank needs"
            ) from None
        except ValueError as wrong:
            raise UsageError(f"a FTRT_* variable cannot be read: {wrong}") from None
        for name in TIMEOUTS:
            text = environment.get(f"FTRT_{name}_TIMEOUT_S")
            if text:
                values[f"{name.lower()}_timeout_s"] = _seconds(f"FTRT_{name}_TIMEOUT_S", text)
        if text := environment.get("FTRT_SYNC_INTERVAL_S"):
            values["sync_interval_s"] = _seconds("FTRT_SYNC_INTERVAL_S", text)
        config = cls(**values)
        if "call_timeout_s" not in values:
            # Whoever waits for a rank that hangs bears it until that rank is replaced.
            longest_s = max(config.stall_timeout_s, config.evict_timeout_s)
            call_s = max(cls.call_timeout_s, longest_s + 60.0)
            config = dataclasses.replace(config, call_timeout_s=call_s)
        config.validate()
        config.compare_timeouts(values)
        return config

    def validate(self) -> None:
        """Refuse what this version cannot do, and time-outs that contradict each other."""
        if self.stable not in ("process", "host", "power"):
            raise UsageError(
                f"there is no stability class {self.stable!r}: use --stable process, host or power"
            )
        if self.plane not in ("host", "nccl"):
            raise UsageError(f"there is no plane {self.plane!r}: use --plane host or --plane nccl")
        if self.plane == "nccl" and self.several:
            raise UsageError("--plane nccl is for one host in this version: leave --hosts out")
        if self.plane == "nccl":
            check_gpus(self.ranks, self.gpus)
        if not 0 <= self.min_ranks <= self.ranks:
            raise UsageError(
                f"--min-ranks {self.min_ranks}: use 1 to {self.ranks}, the number of ranks (-n)"
            )
        if self.least and self.several:
            raise UsageError("--min-ranks is for one host in this version: leave --hosts out")
        if self.least and self.plane == "nccl":
            raise UsageError("--min-ranks is for --plane host in this version")
        if self.heirs and not self.least:
            raise UsageError("--heirs chooses who takes over ranks: it needs --min-ranks below -n")
        if not 0 <= self.standby <= 8:
            raise UsageError(f"standby={self.standby}: 0 to 8 communicators for each peer")
        if self.suspect_timeout_s >= self.evict_timeout_s:
            raise UsageError(
                f"suspect time-out {self.suspect_timeout_s:g} s must be below "
                f"the evict time-out {self.evict_timeout_s:g} s"
            )

    def compare_timeouts(self, given: Collection[str]) -> None:
        """Refuse time-outs of which one never lets the other come to pass.

        Parameters
        ----------
        given : collection of str
            Names of those that were chosen; what nobody chose is not held against others.
        """
        stall, evict, call = self.stall_timeout_s, self.evict_timeout_s, self.call_timeout_s
        if stall < evict and {"stall_timeout_s", "evict_timeout_s"} <= set(given):
            raise UsageError(
                f"stall time-out {stall:g} s must not be below the evict time-out {evict:g} s: a "
                "process that stands still would count as one that hangs"
            )
        if call <= evict:
            raise UsageError(
                f"FTRT_CALL_TIMEOUT_S={call:g} must be above the evict time-out {evict:g} s: who "
                "waits for a rank that stands still would give the attempt up before it is replaced"
            )
        if call <= stall and {"stall_timeout_s", "call_timeout_s"} <= set(given):
            raise UsageError(
                f"FTRT_CALL_TIMEOUT_S={call:g} must be above the stall time-out {stall:g} s: who "
                "waits for a rank that hangs would give the attempt up before it is replaced"
            )


def _switch(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{name}={text}: 1 is on, 0 is off")
    return text == "1"


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _launcher_of(environment: Mapping[str, str]) -> int | None:
    """The launcher's process id means something on the first host alone."""
    if int(environment.get("FTRT_HOST") or 0):
        return None
    return _number(environment.get("FTRT_LAUNCHER_PID"))


def _address(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    return host, int(port)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name}={text}: must be a number of seconds above 0, and finite")
    return value


def environment_config() -> Config:
    """The configuration of this process."""
    return Config.from_environment(os.environ)
