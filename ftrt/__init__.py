"""Exactly-once streams between the ranks of a job whose processes die."""

from __future__ import annotations

import importlib

from ftrt.kernel_cache import find_place_for_kernels

__version__ = "0.1.0"

_HOMES = {
    "init": "ftrt.runtime.runtime",
    "Runtime": "ftrt.runtime.runtime",
    "Role": "ftrt.runtime.runtime",
    "Sender": "ftrt.runtime.sender",
    "Receiver": "ftrt.runtime.receiver",
    "Message": "ftrt.runtime.receiver",
    "DeadlineExceeded": "ftrt.errors",
    "Fenced": "ftrt.errors",
    "FtrtError": "ftrt.errors",
    "LedgerDamaged": "ftrt.errors",
    "LedgerError": "ftrt.errors",
    "PeerFailed": "ftrt.errors",
    "RecoveryImpossible": "ftrt.errors",
    "ReplayMismatch": "ftrt.errors",
    "UsageError": "ftrt.errors",
}

__all__ = sorted([*_HOMES, "__version__"])


find_place_for_kernels(__path__[0])


def __getattr__(name: str):
    """Import a public name when it is first used: ``import ftrt`` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ftrt' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
