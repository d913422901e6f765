"""Checks the models with spin and prints what it took; `make model`.

``python models/check.py`` runs all sizes; ``--quick`` the smallest, ``--bugs`` shows that the model
notices what it is there for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).with_name("agreement.pml")
RECOVERY = Path(__file__).with_name("recovery.pml")
# model, agents (or ranks), crashes, wrong suspicions, repeated ticks, spares
CASES = (
    (MODEL, 3, 2, 1, 0, 0),
    (MODEL, 3, 2, 1, 1, 0),
    (MODEL, 4, 3, 0, 0, 0),
    (RECOVERY, 2, 3, 0, 0, 2),
    (RECOVERY, 3, 2, 0, 0, 2),
    (RECOVERY, 4, 2, 0, 0, 1),
)
LIMIT_S = 600
# Deliberate bugs: a pattern of the model and what stands there instead.
BUGS = {
    "nobody is called in": (r"^    if :: phase\[me\] != IDLE && (left|right) != .*$", "    skip"),
    "the record is not exclusive": (r":: members == 0 ->", ":: true ->"),
    "who has not reported is in the record": (
        r"    :: \(below & ~have\[me\]\) != 0\n(.*\n)*?( *)wanted\[me\] = live & have\[me\];",
        "    :: up != NONE && (below & ~have[me]) != 0\n    :: else -> if :: up == NONE -> "
        "phase[me] = RECORDING; wanted[me] = live;",
    ),
}
RECOVERY_BUGS = {
    "a death while an epoch is published is forgotten": (
        r":: lost != 0 -> begin_closing\(me\)\n            :: else ->",
        ":: false -> skip\n            :: else ->",
    ),
    "the record is not exclusive": (r":: maker\[target\[me\]\] == 0 ->", ":: true ->"),
    "a newer attempt's record is taken for an older one's": (
        r":: maker\[epoch\[me\] \+ 1\] > me \+ 1 -> state",
        ":: false -> state",
    ),
}


def tools() -> bool:
    """Whether spin and a compiler are there."""
    return bool(shutil.which("spin") and shutil.which("gcc"))


def verify(
    text: str, agents: int, crashes: int, wrong: int, ticks: int, spares: int = 2
) -> dict[str, str]:
    """Check one size of a model.

    Returns
    -------
    dict
        ``errors``, ``states``, ``depth``, ``seconds``, and ``says``, the first objection.
    """
    sizes = [f"-DN={agents}", f"-DCRASHES={crashes}", f"-DWRONG={wrong}", f"-DTICKS={ticks}"]
    sizes.append(f"-DSPARES={spares}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.pml").write_text(text)
        build = ["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
        for command in (["spin", "-a", *sizes, "model.pml"], build):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        found = subprocess.run(
            ["./pan", "-m1000000"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
        ).stdout
    patterns = {
        "errors": r"errors: (\d+)",
        "states": r"(\d+) states, stored",
        "depth": r"depth reached (\d+)",
        "seconds": r"elapsed time ([\d.]+)",
        "says": r"pan:\d+: (.*)",
    }
    matches = {key: re.search(pattern, found) for key, pattern in patterns.items()}
    return {key: match.group(1) if match else "" for key, match in matches.items()}


def with_bug(path: Path, bug: str) -> str:
    """Return a model with a deliberate bug."""
    bugs = BUGS if path == MODEL else RECOVERY_BUGS
    changed, count = re.subn(*bugs[bug], path.read_text(), flags=re.M)
    if not count:
        raise RuntimeError(f"{path} has no place for the bug {bug!r}")
    return changed


def main(arguments: list[str]) -> int:
    """Run the cases; 1 if the model objects, or does not notice a bug."""
    if not tools():
        print("the model check needs spin and gcc; on Debian type `apt-get install spin gcc`")
        return 2
    failed = False
    if "--bugs" in arguments:
        for path, bug in [(MODEL, bug) for bug in BUGS] + [(RECOVERY, b) for b in RECOVERY_BUGS]:
            found = verify(with_bug(path, bug), *((3, 1, 1, 0) if path is MODEL else (2, 2, 0, 0)))
            print(f"{path.stem}, {bug}: {found['says'] or 'NOT NOTICED'}", flush=True)
            failed |= found["errors"] == "0"
        return int(failed)
    print(
        "| model | agents or ranks | crashes | wrong suspicions | repeated ticks | spares "
        "| states | depth | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES[:1] if "--quick" in arguments else CASES:
        found = verify(case[0].read_text(), *case[1:])
        failed |= found["errors"] != "0"
        figures = (
            case[0].stem,
            *case[1:],
            f"{int(found['states']):,}",
            found["depth"],
            found["seconds"],
        )
        print(f"| {' | '.join(map(str, figures))} |", found["says"], flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
