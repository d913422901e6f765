"""Names of rings: one chain per (stream, source, dest), one ring per life of the sender."""

from __future__ import annotations

import os
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
    names = [n for n in os.listdir(directory) if n.startswith(prefix)]
    return [directory / name for name in sorted(names) if name[len(prefix) :].isdigit()]


def rings_to(directory: Path, dest: int) -> list[Path]:
    """Rings that end at a rank."""
    end = f"-d{dest:04d}"
    names = [n for n in os.listdir(directory) if n.startswith("ring-")]
    return [directory / name for name in sorted(names) if name.rpartition("-g")[0].endswith(end)]


def generation_of(path: Path) -> int:
    """The generation in a ring's file name."""
    return int(path.name[-8:])
