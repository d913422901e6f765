"""Which host this is: what shares memory with us, and who can be signalled from here."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path

#: Two processes with the same of all these share files in memory and process numbers.
_NAMESPACES = ("pid", "mnt")


@functools.cache
def host_identity() -> bytes:
    """16 bytes that name this host: the start of its kernel, and the namespaces we are in.

    Two containers on one machine are two hosts: neither sees the other's ``/dev/shm`` nor its
    processes.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        boot = os.uname().nodename.encode()
    parts = [boot]
    for name in _NAMESPACES:
        try:
            parts.append(os.readlink(f"/proc/self/ns/{name}").encode())
        except OSError:
            parts.append(b"")
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def digest_of(path: str | Path) -> str:
    """Digest of what a file holds as this host sees it, ``-`` if it sees none."""
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return "-"


if __name__ == "__main__":  # run as a file on each host before a job begins there
    rank, seen = os.environ.get("OMPI_COMM_WORLD_RANK"), "".join(map(digest_of, sys.argv[1:2]))
    print("ftrt-host", rank, host_identity().hex(), seen or "-", flush=True)
