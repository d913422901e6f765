"""An account of effects that no recovery reads.

The ledger says what took effect; this module counts it a second way, so that the two can be
compared. Every incarnation of a process appends to a text file of its own: ``B stream source seq``
before an effect and ``C stream source seq`` after its commit. Nothing here uses the rest of the
package, and nothing in the package uses these files to decide anything.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path

_NAME = re.compile(r"effects-r(\d+)-p\d+-\d+\.txt")


class Effects:
    """Records the effects of one process incarnation.

    Parameters
    ----------
    directory : path-like or None
        Where the file goes; made if it is missing. None gives an object that records nothing.
    rank : int
        The logical rank whose effects these are.
    """

    def __init__(self, directory, rank):
        self._file = None
        if directory is None:
            return
        os.makedirs(directory, exist_ok=True)
        name = f"effects-r{rank:04d}-p{os.getpid()}-{time.time_ns()}.txt"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.path.join(directory, name), flags, 0o644)

    def begin(self, stream, source, seq):
        """Note that the effect of a message is about to be made."""
        self._write("B", stream, source, seq)

    def committed(self, stream, source, seq):
        """Note that the effect of a message is committed."""
        self._write("C", stream, source, seq)

    def close(self):
        """Close the file; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def _write(self, what, stream, source, seq):
        # One unbuffered write for each line: a killed process leaves whole lines behind.
        if self._file is not None:
            os.write(self._file, f"{what} {stream} {source} {seq}\n".encode())


def check_effects(directory, expected):
    """Compare the recorded effects with what a complete run makes.

    Parameters
    ----------
    directory : path-like
        The directory given to `Effects`.
    expected : dict
        For each ``(rank, stream, source)`` the last number that this rank must have consumed.
        The rank belongs to the key because every receiver of a stream makes its own effect.

    Returns
    -------
    dict
        ``losses``, ``duplicates`` and ``ambiguous``: sorted lists of
        ``(rank, stream, source, seq)``. A duplicate was committed more than once, or is a number
        that nobody expected. Ambiguous is a number without a commit line whose begin line is the
        last thing an incarnation wrote: it died in between, and only the result can tell.
    """
    commits, unfinished = _read(directory)
    wanted = {(*key, seq) for key, last in expected.items() for seq in range(1, last + 1)}
    missing = {key for key in wanted if key not in commits}
    duplicates = [key for key, times in commits.items() if times > 1 or key not in wanted]
    return {
        "losses": sorted(missing - unfinished),
        "duplicates": sorted(duplicates),
        "ambiguous": sorted(missing & unfinished),
    }


def _read(directory):
    """Return how often each effect was committed, and those that ended an incarnation."""
    commits: Counter = Counter()
    unfinished: set = set()
    for path in sorted(Path(directory).iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        lines = list(_lines(path, int(name[1])))
        commits.update(key for what, key in lines if what == "C")
        if lines and lines[-1][0] == "B":
            unfinished.add(lines[-1][1])
    return commits, unfinished


def _lines(path, rank):
    """Yield the whole lines of a file; what follows the last newline was cut off by a death."""
    text = path.read_text()
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            what, stream, source, seq = line.split(" ")
            if what not in ("B", "C"):
                raise ValueError(what)
            yield what, (rank, stream, int(source), int(seq))
        except ValueError:
            raise ValueError(f"{path}:{number} is not an effect: {line!r}") from None
