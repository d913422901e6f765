"""One stream that changes between the usual way of a message and all the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mixed_program import sorts
from runtime_job import run_job


@pytest.mark.parametrize("faults", [[], ["corrupt:1@40msg", "abort:0@90msg", "kill:1@150msg"]])
def test_all_sorts_of_messages_mixed(tmp_path, faults):
    options = ["-n", 2, "--spares", 1]
    for fault in faults:
        options += ["--fault", fault]
    ended = run_job(tmp_path, options, Path(__file__).with_name("mixed_program.py"))
    assert ended.status == 0, ended.output
    audit = ended.report["audit"]
    assert audit["ok"] and audit["sent"] == audit["consumed"] == len(sorts())
