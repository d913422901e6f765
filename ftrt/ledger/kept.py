"""Names of the files in which senders keep what a resend needs. Imports nothing that takes time."""

from __future__ import annotations

from urllib.parse import quote

#: Payloads, or digests of them.
SPOOL, DIGESTS = "spool", "digests"
KINDS = (SPOOL, DIGESTS)


def kept_stem(kind: str, stream: str, source: int) -> str:
    """Beginning of the names of the files of one stream, one for each life of its source."""
    return f"{kind}-{quote(stream, safe='')}-r{source:04d}"
