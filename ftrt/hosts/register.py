"""The write-once register of an agreement: one symbolic link an epoch, on storage that all see.

A link is made with what it says in one call that fails where the name exists, so that nobody can
find it empty, and whoever comes second learns what the first said.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ftrt.agree.agreement import AgreedRecord
from ftrt.agree.epoch import EpochId
from ftrt.agree.tree import runs
from ftrt.errors import LedgerDamaged, LedgerError

#: Longest target of a link that every file system takes.
_MOST_BYTES = 1023


class Register:
    """What the agreements of a job decided.

    Parameters
    ----------
    directory : Path
        Exists, and all agents see the same.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def create(self, record: AgreedRecord) -> AgreedRecord:
        """Store a record unless its epoch has one; return the one that is stored.

        Raises
        ------
        LedgerError
            It cannot be stored.
        """
        path = self._path(record.epoch)
        members = ",".join(f"{first}-{last}" for first, last in runs(record.members))
        text = f"{record.epoch.attempt}:{record.coordinator}:{members}"
        if len(text) > _MOST_BYTES:
            raise LedgerError(f"{path}: the members of {record.epoch} are in too many pieces")
        try:
            os.symlink(text, path)
        except FileExistsError:
            same = os.readlink(path) == text
            return record if same else self.read(record.epoch)
        except OSError as error:
            raise LedgerError(f"{path}: cannot be made: {error.strerror}") from error
        return record

    def read(self, epoch: EpochId) -> AgreedRecord:
        """Return the record of an epoch.

        Raises
        ------
        LedgerDamaged
            There is none, or it says nothing that `create` writes.
        """
        path = self._path(epoch)
        try:
            attempt, coordinator, members = os.readlink(path).split(":")
            pairs = (run.split("-") for run in members.split(","))
            agents = tuple(a for first, last in pairs for a in range(int(first), int(last) + 1))
            made = EpochId(epoch.job, int(attempt), epoch.counter)
            return AgreedRecord(made, int(coordinator), agents)
        except (OSError, ValueError) as error:
            raise LedgerDamaged(f"{path}: is no record of an agreement: {error}") from error

    def find(self, epoch: EpochId) -> AgreedRecord | None:
        """Return the record of an epoch, None if there is none."""
        return self.read(epoch) if os.path.islink(self._path(epoch)) else None

    def forget(self, epoch: EpochId) -> None:
        """Remove the record of an epoch that nobody asks for any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(epoch))

    def _path(self, epoch: EpochId) -> str:
        return f"{self._directory}/{epoch.job}-{epoch.counter}"
