"""The environment's settings of the plane between GPUs, read in one place and refused in one place.

======================== =========================================================================
variable                 meaning
======================== =========================================================================
``FTRT_NCCL_PATH``       the library to load instead of the one that is found
``FTRT_NCCL_MODE``       ``graph`` (default), ``eager`` or ``revoke``
``FTRT_NCCL_REGISTER``   ``buffer`` (default), ``window`` or ``off``: how slots are registered
``FTRT_NCCL_LIBRARY``    ``fake``: a library and GPUs in plain memory, for tests
``FTRT_FAKE_GPUS``       how many GPUs the fake has; one for each rank by default
``FTRT_FAKE_WITHOUT``    features that the fake lacks, with commas
``FTRT_SHARE_GPU``       ``1``: ranks share the GPUs that are there, over sockets
======================== =========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ftrt.errors import UsageError
from ftrt.transport.nccl.capabilities import FEATURES

PATHS = ("graph", "eager", "revoke")
#: How slots are registered with NCCL; a window is a buffer that both ends register together, from
#: which NCCL's send and receive have nothing to gain so far.
REGISTER = ("buffer", "window", "off")


@dataclass(frozen=True)
class Settings:
    """What the environment says; see the table above."""

    fake: bool = False
    fake_gpus: int | None = None
    without: frozenset[str] = frozenset()
    share: bool = False
    path: str | None = None
    mode: str = "graph"
    register: str = "buffer"

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read and check them.

        Raises
        ------
        UsageError
            One has no meaning; the text names it and what it may be.
        """
        found = os.environ if environment is None else environment
        lacking = filter(None, (found.get("FTRT_FAKE_WITHOUT") or "").split(","))
        return cls(
            fake=_one_of(found, "FTRT_NCCL_LIBRARY", ("", "fake")) == "fake",
            fake_gpus=_count(found, "FTRT_FAKE_GPUS"),
            without=frozenset(_known("FTRT_FAKE_WITHOUT", name) for name in lacking),
            share=_one_of(found, "FTRT_SHARE_GPU", ("", "0", "1")) == "1",
            path=found.get("FTRT_NCCL_PATH") or None,
            mode=_one_of(found, "FTRT_NCCL_MODE", PATHS),
            register=_one_of(found, "FTRT_NCCL_REGISTER", REGISTER),
        )


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """``value`` if it is allowed.

    Raises
    ------
    UsageError
        It is not.
    """
    if value not in allowed:
        raise UsageError(f"{name}={value}: one of {', '.join(filter(None, allowed))}")
    return value


def _one_of(environment: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    return one_of(name, environment.get(name) or allowed[0], allowed)


def _known(name: str, feature: str) -> str:
    return one_of(name, feature, tuple(FEATURES))


def _count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{name}={text}: a number of GPUs, from 0 on")
    return int(text)
