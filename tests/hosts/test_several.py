"""Jobs over several hosts, with ranks that die, on hosts made of namespaces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import hosts, reason_not
from several import ROOT, STREAM, Job, left_behind

REASON = reason_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture
def two():
    with hosts(["a", "b"], [ROOT]) as made:
        yield made


def test_spares_of_either_host_take_over_ranks_of_the_other(two):
    """Processes 0, 2 run on a, 1 and 3 on b: rank 0 goes on on a, then rank 1 too, then on b."""
    faults = ["kill:1@300msg", "kill:0@700msg", "kill:1@1200msg"]
    options = ["-n", 2, "--spares", 3, *(w for f in faults for w in ("--fault", f))]
    ended = Job(two, options, STREAM, "--messages", 2000).end()
    assert ended.status == 0, ended.output
    assert ended.report["audit"]["consumed"] == 2000
    acting = [[m["process"] for m in record["members"]] for record in ended.records]
    assert acting == [[0, 1], [0, 2], [3, 2], [3, 4]]
    assert all(record["hosts"] == [0, 1] for record in ended.records)
    assert len(ended.named("recovery")) == 3
    assert left_behind(two) == []
