"""These tests need two GPUs; without them each says so and is skipped. ``make test-gpu``."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "nccl"))


def gpus() -> int:
    from ftrt.errors import UsageError

    try:
        from ftrt.transport.nccl.cuda import gpu_count

        return gpu_count()
    except UsageError:
        return 0


def pytest_collection_modifyitems(items):
    here = [item for item in items if Path(__file__).parent in Path(item.fspath).parents]
    if here and gpus() < 2 and os.environ.get("FTRT_SHARE_GPU") != "1":
        for item in here:
            item.add_marker(pytest.mark.skip(reason="two GPUs are needed"))
