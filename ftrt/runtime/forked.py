"""A forked child of a rank has the rank's memory, but it is not the rank."""

from __future__ import annotations

from typing import Any, NoReturn

from ftrt.errors import UsageError


def refuse(what: str) -> NoReturn:
    """Raise for a call that only the rank itself may make."""
    raise UsageError(
        f"{what} belongs to the process that called ftrt.init(), and this is a forked child of "
        "it: hand the child what it needs, and send and consume in the rank; nothing was done"
    )


class Disowned:
    """In place of what a child must not use: every use of it is refused."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        refuse(self._what)
