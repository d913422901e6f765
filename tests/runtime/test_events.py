"""The file of events: several processes append to it, and each of them may die amid a line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ledger"))
from ledger_support import mounted

from ftrt.runtime.events import EventLog, recorded_failure


@pytest.mark.parametrize(
    "torn", [b'{"t": 1.0, "event": "fai', b'{"t": 1.0, "reason": "\xe2\x82', b"7"]
)
def test_half_a_line_hides_no_failure(tmp_path, torn):
    EventLog(tmp_path, 1).write("failed", reason="no spare is left")
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(torn)
    assert recorded_failure(tmp_path, 1) == "no spare is left"


def test_an_event_is_whole_on_a_disk_that_fills_up_within_its_line(tmp_path):
    with mounted(tmp_path, "size=320k"):
        (tmp_path / "reserve").write_bytes(bytes(64 << 10))
        (tmp_path / "page").write_bytes(bytes(4096))
        log = EventLog(tmp_path, 1)
        with open(tmp_path / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        (tmp_path / "page").unlink()  # a write of more takes this much and says so
        reason = "x" * 9000
        log.write("failed", reason=reason)
        assert recorded_failure(tmp_path, 1) == reason
        assert not os.path.exists(tmp_path / "reserve")
