"""Blank segments, made beforehand, and how one becomes a rank's ledger."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ..errors import LedgerError
from . import h5, layout
from .segment import Segment
from .steps import step

#: As many segments of a ledger have the same size, then they grow by the size of the first.
_STEP, _LARGEST = 4, 16


class LedgerPool:
    """Blank segments of one ledger directory.

    The tables of a segment and its empty rest cost least together if the segments of a ledger grow
    with the square root of what it holds. Those after the first few are made when they are needed.

    Parameters
    ----------
    directory : path
    pages : int
        Size of the first segments of a ledger, in pages of 512 run words.
    """

    def __init__(self, directory, pages: int = 64):
        self.directory = Path(directory)
        self.pages = pages

    def _blanks(self) -> list[Path]:
        return sorted(self.directory.glob("blank-*.h5"))

    def _create(self) -> None:
        h5.create_segment_file(self.directory / f"blank-{uuid.uuid4().hex}.h5", self.pages)

    def pages_of(self, segment: int) -> int:
        """Size of a ledger's segment with this number."""
        return self.pages * min(1 + segment // _STEP, _LARGEST)

    def ensure(self, count: int) -> None:
        """Make blanks until there are ``count``."""
        for _ in range(count - len(self._blanks())):
            self._create()

    def _take(self, segment: int) -> Path:
        """A blank under a name of our own; a rename that finds nothing was beaten by another."""
        mine = self.directory / f"claim-{uuid.uuid4().hex}.h5"
        pages = self.pages_of(segment)
        if pages > self.pages:
            h5.create_segment_file(mine, pages)
            return mine
        while True:
            for blank in self._blanks():
                try:
                    os.rename(blank, mine)
                    return mine
                except FileNotFoundError:
                    continue
            self._create()

    def claim(
        self,
        epoch: int,
        rank: int,
        segment: int,
        *,
        job: str,
        attempt: int,
        incarnation: int,
        closed: bool = False,
    ) -> Path:
        """Turn a blank into the named segment, header filled before anybody can see it.

        Raises
        ------
        FileExistsError
            The segment exists already.
        """
        target = self.directory / layout.segment_name(epoch, rank, segment)
        if target.exists():
            raise FileExistsError(str(target))
        mine = self._take(segment)
        step("blank.taken")
        try:
            made = Segment(mine, blank=True)
            made.fill(
                job=job,
                attempt=attempt,
                epoch=epoch,
                rank=rank,
                segment=segment,
                incarnation=incarnation,
            )
            if closed:
                made.header["control"] = 1 | layout.CLOSED
            step("blank.filled")
            os.link(mine, target)  # unlike a rename it never replaces what is there
            step("blank.linked")
        except FileExistsError:
            raise
        except OSError as error:
            raise LedgerError(f"{target}: cannot be claimed: {error.strerror}") from error
        finally:
            mine.unlink(missing_ok=True)
        return target
