"""The grammar of ``--fault SPEC``: what happens to which rank, and when."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftrt.errors import UsageError

#: Kinds of the whole grammar, each with an example.
EXAMPLES = {
    "kill": "kill:1@200msg",
    "segv": "segv:1@200msg",
    "exit": "exit:1@200msg",
    "abort": "abort:1@200msg",
    "stop": "stop:2@2s+800ms",
    "link": "link:0-2@1.5s+300ms",
    "corrupt": "corrupt:1@200msg",
    "hang": "hang:1@200msg",
    "freeze": "freeze:1@200msg",
    "throttle": "throttle:1@1s+2s",
    "gpu": "gpu:1@200msg",
    "eio": "eio:1@200msg",
}

_WITH_DURATION = ("stop", "link", "throttle")
_NUMBER = r"\d+(?:\.\d+)?"
_SPEC = re.compile(
    r"(?P<kind>[a-z]+):(?P<rank>\d+)(?:-(?P<peer>\d+))?"
    rf"@(?P<when>recovery|\d+msg|{_NUMBER}(?:s|ms))(?:\+(?P<duration>{_NUMBER}(?:s|ms)))?"
)


@dataclass(frozen=True)
class Fault:
    """One fault to inject.

    Attributes
    ----------
    kind : str
        A key of ``EXAMPLES``.
    rank : int
        The rank that is hit, or the first one of a link.
    peer : int or None
        The other rank of a link.
    when_kind : {'seconds', 'messages', 'recovery'}
        What ``when`` counts: seconds since the start of the attempt, messages consumed or sent by
        ``rank``, or nothing (inside the next recovery).
    when : float
        The count; 0 for a recovery.
    duration_s : float or None
        How long it lasts, for the kinds that end.
    spec : str
        The text it was parsed from.
    """

    kind: str
    rank: int
    peer: int | None
    when_kind: str
    when: float
    duration_s: float | None
    spec: str


def parse_fault(spec: str) -> Fault:
    """Parse one SPEC such as ``kill:1@200msg`` or ``stop:2@2s+800ms``.

    Raises
    ------
    UsageError
        The text is malformed, or of an unknown kind.
    """
    kind = spec.partition(":")[0]
    if kind not in EXAMPLES:
        raise UsageError(
            f"--fault {spec!r}: unknown kind {kind!r}; the kinds are {', '.join(EXAMPLES)}, "
            f"for example {EXAMPLES['kill']}"
        )
    return _parse(spec, kind)


def _parse(spec: str, kind: str) -> Fault:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise _malformed(spec, kind, "is malformed")
    if (match["peer"] is not None) != (kind == "link"):
        raise _malformed(spec, kind, "names one rank too few or too many")
    if (match["duration"] is not None) != (kind in _WITH_DURATION):
        raise _malformed(spec, kind, "has a duration where none belongs, or lacks one")
    when_kind, when = _when(match["when"])
    if when_kind == "messages" and when < 1:
        raise _malformed(spec, kind, "counts messages from 1")
    duration_s = None if match["duration"] is None else _seconds(match["duration"])
    if duration_s == 0:
        raise _malformed(spec, kind, "lasts no time at all")
    peer = None if match["peer"] is None else int(match["peer"])
    return Fault(kind, int(match["rank"]), peer, when_kind, when, duration_s, spec)


def validate(fault: Fault, ranks: int, stable: str = "process", plane: str = "host") -> None:
    """Refuse a fault that cannot happen in a job of ``ranks`` ranks and this class."""
    if fault.kind == "eio" and stable == "process":
        raise UsageError(
            f"--fault {fault.spec!r}: in class process nothing is synced that could fail; "
            "add --stable power"
        )
    if fault.kind == "gpu" and plane != "nccl":
        raise UsageError(
            f"--fault {fault.spec!r}: plane {plane} uses no GPU that could fail; add --plane nccl"
        )
    if fault.rank == fault.peer:
        raise UsageError(
            f"--fault {fault.spec!r}: a rank has no link to itself; for example {EXAMPLES['link']}"
        )
    named = [fault.rank] if fault.peer is None else [fault.rank, fault.peer]
    for rank in named:
        if rank >= ranks:
            raise UsageError(
                f"--fault {fault.spec!r}: there is no rank {rank}, the ranks are 0 to {ranks - 1}; "
                f"for example {fault.kind}:{ranks - 1}{fault.spec[fault.spec.index('@') :]}"
            )


def _when(text: str) -> tuple[str, float]:
    if text == "recovery":
        return "recovery", 0.0
    if text.endswith("msg"):
        return "messages", float(text[:-3])
    return "seconds", _seconds(text)


def _seconds(text: str) -> float:
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


def _malformed(spec: str, kind: str, what: str) -> UsageError:
    return UsageError(f"--fault {spec!r} {what}; for example {EXAMPLES[kind]}")
