"""Names of rings: one chain per (stream, source, dest), one ring per life of the sender."""

from __future__ import annotations

import zlib
from pathlib import Path
from urllib.parse import quote


def stream_id(stream: str, source: int, dest: int) -> int:
    """A 32-bit number for slot headers; a mix-up between streams then fails the header check."""
    return zlib.crc32(f"{stream}\0{source}\0{dest}".encode())


def ring_prefix(stream: str, source: int, dest: int) -> str:
    """Common beginning of the file names of a chain."""
    return f"ring-{quote(stream, safe='')}-s{source:04d}-d{dest:04d}-g"


def ring_path(directory: Path, stream: str, source: int, dest: int, generation: int) -> Path:
    """File of one ring of the chain; generations of a chain only grow."""
    return directory / f"{ring_prefix(stream, source, dest)}{generation:08d}"


def chain(directory: Path, stream: str, source: int, dest: int) -> list[Path]:
    """Rings of a chain, oldest first."""
    prefix = ring_prefix(stream, source, dest)
    return sorted(p for p in directory.iterdir() if _is_ring(p, prefix))


def _is_ring(path: Path, prefix: str) -> bool:
    return path.name.startswith(prefix) and path.name[len(prefix) :].isdigit()


def generation_of(path: Path) -> int:
    """The generation in a ring's file name."""
    return int(path.name[-8:])
