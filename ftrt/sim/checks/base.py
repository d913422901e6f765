"""What a checker says when a promise was broken."""

from __future__ import annotations


class Violation(Exception):
    """A promise was broken.

    Parameters
    ----------
    checker : str
        Which checker saw it.
    text : str
        What it saw.
    """

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(checker, text)
        self.checker, self.text = checker, text

    def __str__(self) -> str:
        return f"{self.checker}: {self.text}"
