"""What a loaded library can do: asked once, kept in one table, so that nobody compares versions.

A function that the library exports is there; what cannot be seen from outside (a rule that
changed, a call that returns another code) is in :data:`DIFFERENCES`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ftrt.transport.nccl.codes import Result


class Feature(NamedTuple):
    """An optional part of the library."""

    symbol: str
    lost_without: str


FEATURES: dict[str, Feature] = {
    "nonblocking": Feature(
        "ncclCommInitRankConfig", "a thread can park inside a call: blocking communicators only"
    ),
    "revoke": Feature(
        "ncclCommRevoke", "path revoke: a communicator is aborted instead, which takes longer"
    ),
    "shrink": Feature("ncclCommShrink", "a communicator is made anew instead of shrunk"),
    "grow": Feature("ncclCommGrow", "a communicator is made anew instead of grown"),
    "split": Feature("ncclCommSplit", "a communicator is made anew instead of split"),
    "registration": Feature("ncclCommRegister", "slots are not registered, one more copy each"),
    "windows": Feature("ncclCommWindowRegister", "slots are no symmetric windows"),
    "mem_alloc": Feature("ncclMemAlloc", "slots come from the CUDA allocator"),
    "suspend": Feature("ncclCommSuspend", "an idle standby communicator keeps its memory"),
}


class Difference(NamedTuple):
    """A rule in which NCCL and RCCL are not alike."""

    what: str
    nccl: int | bool
    rccl: int | bool


DIFFERENCES: dict[str, Difference] = {
    "finalize_after_revoke": Difference(
        "result of finalize on a revoked communicator",
        Result.INVALID_ARGUMENT,
        Result.INVALID_USAGE,
    ),
    "send_after_revoke": Difference(
        "result of new work on a revoked communicator",
        Result.INVALID_USAGE,
        Result.INVALID_USAGE,
    ),
    "second_revoke": Difference(
        "result of a second revoke", Result.INVALID_ARGUMENT, Result.INVALID_ARGUMENT
    ),
    "blocking_may_be_aborted": Difference(
        "a thread inside a call of a blocking communicator comes back after an abort", True, False
    ),
}


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What one loaded library can do.

    Attributes
    ----------
    library : str
        ``"nccl"``, ``"rccl"`` or ``"fake"`` (which behaves as NCCL).
    version : int
        As the library tells it, for messages only.
    features : frozenset of str
        Keys of :data:`FEATURES`.
    """

    library: str
    version: int
    features: frozenset[str]

    def has(self, feature: str) -> bool:
        """Whether the library has a feature."""
        if feature not in FEATURES:
            raise KeyError(feature)
        return feature in self.features

    def rule(self, name: str) -> int | bool:
        """How this library behaves where libraries differ."""
        row = DIFFERENCES[name]
        return row.rccl if self.library == "rccl" else row.nccl

    @property
    def always_nonblocking(self) -> bool:
        """Whether every communicator must be non-blocking to be abortable at all."""
        return self.has("nonblocking") and not self.rule("blocking_may_be_aborted")

    def losses(self) -> list[str]:
        """What is lost with this library, one sentence for each missing feature."""
        return [
            f"{name}: {feature.lost_without}"
            for name, feature in FEATURES.items()
            if name not in self.features
        ]

    def as_rows(self) -> list[dict[str, object]]:
        """The table, as ``ftrt doctor`` and the benchmarks print it."""
        return [{"feature": name, "present": name in self.features} for name in FEATURES]


def probe(library: str, version: int, exports: Callable[[str], bool]) -> Capabilities:
    """Ask a library for every feature by the function that it exports."""
    found = frozenset(name for name, f in FEATURES.items() if exports(f.symbol))
    return Capabilities(library, version, found)


def version_text(version: int) -> str:
    """2_32_03 as NCCL codes it, in dots."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def cuda_mismatch(built_for: int, driver: int, what: str = "CuPy") -> str | None:
    """Why a library of one CUDA generation does not work with a driver, None if it does.

    A driver runs what was built for its own generation and for earlier ones.

    Parameters
    ----------
    built_for : int
        Major version of CUDA that it was built for.
    driver : int
        CUDA version that the driver supports, as the driver tells it (12040 is 12.4).
    what : str
        Its name, for the text.
    """
    major = driver // 1000
    if built_for <= major:
        return None
    return (
        f"{what} was built for CUDA {built_for}, and the driver has "
        f"{major}.{driver % 1000 // 10}: type `pip install 'ftrt[cuda{major}]'` in a fresh "
        "environment, or update the driver"
    )


def cuda_note(built_for: Mapping[str, int | None], driver: int | None) -> str | None:
    """What the start of a run says of libraries that are older than the driver, or not alike."""
    known = {name: major for name, major in built_for.items() if major is not None}
    if driver is None or all(major == driver // 1000 for major in known.values()):
        return None
    named = ", ".join(f"{name} for CUDA {major}" for name, major in known.items())
    return f"{named}, and a driver for {driver // 1000}.{driver % 1000 // 10}: it runs older ones"


def environment_notes(environment: Mapping[str, str]) -> list[str]:
    """Settings of the environment that ftrt sees and leaves as they are."""
    notes = []
    for name, off in (
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ):
        if environment.get(name) == off:
            notes.append(f"{name}={off}: NVLink multicast is off and stays off")
    return notes
