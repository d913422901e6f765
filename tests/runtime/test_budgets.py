"""Credit is freed by consumed, retention by stable: each has its own bound."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runtime_job import run_job

from ftrt.errors import UsageError
from ftrt.runtime.kept import retention_of

WINDOW, SLOT_BYTES, MESSAGES, SYNC_S = 4, 1 << 16, 60, 0.05
JOB = """
import sys, time
from pathlib import Path
import numpy as np
import ftrt
how, window, slot_bytes, messages, limit = sys.argv[1], *map(int, sys.argv[2:])
with ftrt.init() as rt:
    if rt.rank == 0:
        more = {how: True, "window": window, "slot_bytes": slot_bytes, "retention_bytes": limit}
        start, most = time.monotonic(), 0
        with rt.sender("numbers", to=1, **more) as out:
            for seq in range(out.next_seq, messages + 1):
                out.send(np.full(slot_bytes // 8, seq))
                most = max(most, out._kept.kept_bytes)
        used = [p.stat().st_blocks * 512 for p in rt.config.ledger.glob("spool-*")]
        print("kept", most, "storage", sum(used), "ms", int(1e3 * (time.monotonic() - start)))
    else:
        total = 0
        for message in rt.receiver("numbers", source=0):
            with message.consume() as effect:
                total = effect["sum"] = total + int(message.array[0])
        print("digest", total)
"""


@pytest.mark.parametrize("how, extra", [("spool", 512), ("volatile", 0)])
def test_the_smallest_retention_works_in_class_power(tmp_path, how, extra):
    limit = WINDOW * (SLOT_BYTES + extra)
    program = tmp_path / "job.py"
    program.write_text(JOB)
    arguments = [how, WINDOW, SLOT_BYTES, MESSAGES, limit]
    options, env = ["-n", 2, "--stable", "power"], {"FTRT_SYNC_INTERVAL_S": str(SYNC_S)}
    ended = run_job(tmp_path, options, program, *arguments, env=env)
    assert ended.status == 0, ended.output
    assert f"digest {MESSAGES * (MESSAGES + 1) // 2}" in ended.output
    found = re.search(r"kept (\d+) storage (\d+) ms (\d+)", ended.output)
    kept, storage, took_ms = (int(value) for value in found.groups())
    assert SLOT_BYTES < kept <= limit
    assert storage < MESSAGES * SLOT_BYTES / 2  # space goes back in pieces of 1 MiB
    # Consumed in microseconds, stable after a sync: not more than a window for each of these.
    assert took_ms / 1e3 > (MESSAGES / WINDOW - 3) * SYNC_S / 2


def test_a_retention_below_the_window_is_refused_with_the_smallest_that_works():
    with pytest.raises(UsageError, match="the smallest that works is retention_bytes=4096,"):
        retention_of("sender 'a'", 4095, 4096, 0, None)
    assert retention_of("sender 'a'", 4096, 4096, 0, None) == 4096
    with pytest.raises(UsageError, match="the smallest that works is retention_bytes=8192,"):
        retention_of("sender 'a'", 8191, 4096, 8, None)
    assert retention_of("sender 'a'", 8192, 4096, 8, None) == 8192


def test_a_retention_without_a_payload_to_keep_is_refused():
    with pytest.raises(UsageError, match="no meaning with replay=.*leave it out"):
        retention_of("sender 'a'", 1 << 30, 4096, 0, len)


def test_by_default_several_windows_are_kept():
    for window_bytes in (1 << 12, 1 << 20, 1 << 32):
        assert retention_of("sender 'a'", None, window_bytes, 64, None) >= 4 * window_bytes
