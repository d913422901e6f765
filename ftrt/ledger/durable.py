"""Classes host and power: the marks that say up to where a rank's ledger survives.

A *durable mark* is published after everything up to it was synced. After a power cut, or from
another host once its own is lost, a ledger counts up to its mark; what storage has beyond it, in
whatever mixture, is void.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import LedgerError
from . import layout, record
from .segment import Segment, boot_id

MARK_NAME = layout.ROOT_STEM + "-durable.json"
# Values of the ``owned`` word of a ledger's first segment.
FREE, OWNED, SYNC_FAILED = 0, 1, 2


def mark_path(directory: Path, epoch: int, rank: int) -> Path:
    """Where the durable mark of a rank in an epoch lies."""
    return Path(directory) / MARK_NAME.format(epoch=epoch, rank=rank)


def read_mark(directory: Path, epoch: int, rank: int) -> dict:
    """``{heads: [[segment, stream, head, last]], segments, states}``; empty if there is none."""
    path = mark_path(directory, epoch, rank)
    if not path.exists():
        return {"epoch": epoch, "rank": rank, "heads": [], "segments": 1, "states": []}
    return record.read_file(path)


def publish_mark(
    directory: Path, epoch: int, rank: int, heads: list, segments: int, states: list[str]
) -> None:
    """Replace the mark of a rank by a later one, on stable storage when this returns."""
    mark = {"epoch": epoch, "rank": rank, "heads": heads, "segments": segments, "states": states}
    record.replace_file(mark_path(directory, epoch, rank), mark)


def cut_of(first: Segment, directory: Path, attempt: int | None) -> dict | None:
    """The mark that a ledger ends at, None if it ends where its memory says.

    Parameters
    ----------
    first : Segment
        The first segment of the ledger.
    directory : path
    attempt : int, optional
        The attempt that is ending this ledger.

    Raises
    ------
    LedgerError
        Nothing of it can be trusted that is not durable, and its class or its attempt does not
        allow to go back there.
    """
    epoch, rank = first.epoch, first.rank
    if first.boot != boot_id():
        if _class_of(directory) == "process":
            raise LedgerError(
                f"{directory}: was written before this machine was started, or on another one, "
                "and its class (process) does not survive that; start the job anew with another "
                "--ledger, with --stable power or, for the loss of a host, --stable host"
            )
        return read_mark(directory, epoch, rank)
    if int(first.header["owned"]) != SYNC_FAILED:
        return None
    if attempt == first.attempt:
        raise LedgerError(
            f"rank {rank}, epoch {epoch}: its ledger {first.path} could not be synced; nothing "
            "that was durable is lost. Check the disk, then go on from the ledger with --resume"
        )
    return read_mark(directory, epoch, rank)


def cut_for_reader(first: Segment, directory: Path) -> dict | None:
    """:func:`cut_of` for somebody who only reads: in class process what is there counts."""
    trusted = first.boot == boot_id()
    if (trusted and int(first.header["owned"]) != SYNC_FAILED) or _class_of(directory) == "process":
        return None
    return read_mark(directory, first.epoch, first.rank)


def _class_of(directory: Path) -> str:
    path = Path(directory) / "job.json"
    return record.read_job(directory).get("stable", "process") if path.exists() else "process"
