"""Recoveries as text: a short script, and the transcript of what the core makes of it.

A script has a title (``# …``), the job (``ranks``, ``spares``, ``hosts``, ``plane``, ``stable``,
``restarts``, ``least``, ``policy``), its streams (``stream NAME SOURCE->DEST COUNT [KIND]
[window=…] …``) and faults (``at TIMEus FAULT [TARGET] [for TIMEus]`` or ``in MOMENT FAULT …``). All
delays are the shortest, so that only the script decides what happens. Behind a line ``---`` comes
the transcript.

``python -m ftrt.sim.scenario FILE…`` prints the transcripts; with ``--update`` it writes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrt.errors import UsageError
from ftrt.sim.plan import FINISHING, LATE_MOMENTS, MOMENTS, Fault, Plan, Stream
from ftrt.sim.run import run_one
from ftrt.sim.world import World

RULE = "---"
_NUMBERS = {"ranks": 2, "spares": 0, "hosts": 1, "restarts": 0, "least": 0}
_WORDS = {"plane": "ring", "stable": "process", "policy": ""}
_SIZES = {"window": 8, "retention": 16, "batch": 1, "stable_every": 1, "lead": 4, "needs": -1}
FAULTS = (
    "kill",
    "stop",
    "evict",
    "suspect",
    "late",
    "agent-stop",
    "agent-kill",
    "requeue",
    "full",
    "cut",
    "silent",
    "host",
    "power",
)


def parse(text: str) -> Plan:
    """Read a script; what is behind the rule is not looked at.

    Raises
    ------
    UsageError
        A line cannot be understood; the text names it.
    """
    numbers, words = dict(_NUMBERS), dict(_WORDS)
    streams: list[Stream] = []
    faults: list[Fault] = []
    for line in text.split(f"\n{RULE}\n")[0].splitlines():
        parts = line.split("#")[0].split()
        try:
            if not parts:
                continue
            if parts[0] in numbers:
                numbers[parts[0]] = int(parts[1])
            elif parts[0] in words:
                words[parts[0]] = parts[1]
            elif parts[0] == "stream":
                streams.append(_stream(len(streams), parts[1:]))
            else:
                faults.append(_fault(parts))
        except (ValueError, IndexError, KeyError) as error:
            raise UsageError(f"scenario: {line!r} is not understood ({error})") from error
    return Plan(
        seed=0,
        ranks=numbers["ranks"],
        spares=numbers["spares"],
        hosts=numbers["hosts"],
        restarts=numbers["restarts"],
        least=numbers["least"],
        policy=words["policy"],
        plane=words["plane"],
        stable=words["stable"],
        streams=tuple(streams),
        faults=tuple(faults),
        stepwise=True,
        loss=0.0,
        calm=True,
    )


def _stream(number: int, parts: list[str]) -> Stream:
    name, ends, count, *rest = parts
    source, dest = (int(end) for end in ends.split("->"))
    kind, sizes = "replay", dict(_SIZES)
    for word in rest:
        if "=" in word:
            key, value = word.split("=")
            sizes[key] = int(value) + 0 * sizes[key]  # a KeyError for what is no size
        else:
            kind = word
    return Stream(number, name, source, dest, int(count), kind, ordered=True, **sizes)


def _fault(parts: list[str]) -> Fault:
    how, moment, kind, *rest = parts
    if kind not in FAULTS:
        raise ValueError(f"no such fault; there are {', '.join(FAULTS)}")
    when: int | str = _us(moment) if how == "at" else moment
    moments = (*MOMENTS, *LATE_MOMENTS, FINISHING)
    if how not in ("at", "in") or (how == "in" and moment not in moments):
        raise ValueError(f"say 'at TIMEus' or 'in' one of {', '.join(moments)}")
    length = _us(rest[rest.index("for") + 1]) if "for" in rest else 0
    target = int(rest[0]) if rest and rest[0] != "for" else 0
    return Fault(kind, when, target, length)


def _us(text: str) -> int:
    if not text.endswith("us"):
        raise ValueError(f"{text} is no time in us")
    return int(text[:-2])


def play(text: str) -> str:
    """Run a script; return its transcript."""
    world, violation = run_one(parse(text), tracing=True)
    lines = [line[8:] for line in world.trace if not line.endswith("the attempt is over")]
    return "\n".join([*lines, *_end(world), *([str(violation)] if violation else [])])


def _end(world: World) -> list[str]:
    """Say how it ended, and what took effect in the history that counts."""
    launcher = world.launcher
    if launcher.given_up:
        return ["the job ends without its result; the ledger is whole"]
    told = []
    for stream in world.plan.streams:
        counted = world.checks.once.counted(stream.number)
        told.append(f"{stream.name} {counted.count} of {stream.last}")
    epoch = world.storage.records[world.storage.latest].epoch
    return [f"the job is done in epoch {epoch}: " + ", ".join(told)]


def main(arguments: list[str]) -> int:
    """Print transcripts, or write them behind their scripts."""
    update = "--update" in arguments
    for name in arguments:
        if name == "--update":
            continue
        path = Path(name)
        script = path.read_text().split(f"\n{RULE}\n")[0].rstrip()
        whole = f"{script}\n\n{RULE}\n{play(script)}\n"
        if update:
            path.write_text(whole)
        else:
            print(whole)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
