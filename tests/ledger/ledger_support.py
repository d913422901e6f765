"""A ledger directory for tests, and children that die where they are told to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import traceback
import uuid

import pytest

from ftrt.ledger import log, record
from ftrt.ledger.pool import LedgerPool

JOB = str(uuid.UUID(int=7))


def make_directory(path, pages: int = 4) -> LedgerPool:
    record.create_job(path, {"job": JOB})
    record.create_record(path, {"epoch": 1, "job": JOB})
    return LedgerPool(path, pages)


def open_ledger(pool: LedgerPool, epoch: int = 1, rank: int = 0, job: str = JOB) -> log.Ledger:
    return log.Ledger.open(pool, job=job, attempt=1, epoch=epoch, rank=rank, incarnation=1)


def start_child(work, timeout_s: float = 20.0) -> int:
    """Run ``work()`` in a forked child; its process id."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(timeout_s))
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def run_child(work) -> int:
    """Run ``work()`` in a child to its end; its wait status."""
    return os.waitpid(start_child(work), 0)[1]


class DieAt:
    """A hook for ``steps.install`` that kills the process at its ``number``-th call.

    It tells the names that it has seen in the file ``told``, if there is one.
    """

    def __init__(self, number: int, told=None):
        self.left, self._told = number, told

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self._told is not None:
            with open(self._told, "a") as file:
                file.write(f"{name}\n")
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@contextlib.contextmanager
def mounted(directory, options: str):
    """A file system of its own on ``directory``; the test is skipped where that is not allowed."""
    made = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)
