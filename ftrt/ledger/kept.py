"""Names of the files in which senders keep what a resend needs. Imports nothing that takes time."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

#: Payloads, or digests of them.
SPOOL, DIGESTS = "spool", "digests"
KINDS = (SPOOL, DIGESTS)


def kept_path(
    directory: Path, kind: str, stream: str, source: int, since_epoch: int, pid: int
) -> Path:
    """File of one life of a source."""
    return directory / f"{_stem(kind, stream, source)}-e{since_epoch:06d}-{pid}.bin"


def kept_files(directory: Path, kind: str, stream: str, source: int) -> list[Path]:
    """Files of all lives of a source, oldest first."""
    stem = _stem(kind, stream, source)
    # Another stream's name may begin like this one's and go on like the rest of a file name.
    mine = re.compile(re.escape(stem) + r"-e(\d{6,})-(\d+)\.bin")
    found = [(mine.fullmatch(path.name), path) for path in directory.glob(f"{stem}-e*.bin")]
    lives = [(int(name[1]), int(name[2]), path) for name, path in found if name]
    return [path for _, _, path in sorted(lives)]


def _stem(kind: str, stream: str, source: int) -> str:
    return f"{kind}-{quote(stream, safe='')}-r{source:04d}"
