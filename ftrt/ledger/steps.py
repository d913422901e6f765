"""Named points between two writes, where a test lets a process die or makes it wait.

A point does nothing in a job: only a test installs a hook. The points inside the compiled commit
have no cost at all; tests run that function's source with atomics that call :func:`step`.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def step(name: str) -> None:
    """Pass the point ``name``."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(name)`` at every point of this process from now on; None ends that."""
    global _hook
    _hook = hook
