"""The benchmark of recoveries, with real deaths of ours and of plain ULFM."""

from __future__ import annotations

import pytest

from ftrt.bench.recovery import measure, rows_of
from ftrt.host.timing import PHASES


@pytest.mark.timeout(60)
def test_a_recovery_is_measured_by_phase_beside_plain_ulfm():
    samples = measure("python", 0.0, kills=1)
    ours, raw = samples[0], [sample["raw"] for sample in samples[1:]]
    assert set(ours) == {"whole", "seen", *PHASES} and raw and min(raw) > 0
    inside_ms = sum(ours[name] for name in PHASES)
    assert 0 < ours["detect"] < inside_ms == pytest.approx(ours["whole"], abs=0.1)
    assert ours["whole"] < ours["seen"] + 0.1  # nobody sees it before it is
    whole, seen, *phases = rows_of({"python": samples})
    assert seen["ftrt"] == pytest.approx(ours["seen"], abs=1e-3)
    assert whole["ratio"] == pytest.approx(whole["raw"] / whole["ftrt"], abs=1e-3)
    assert [row["what"].strip() for row in phases] == list(PHASES)
    names = {"what", "size", "unit", "raw", "ftrt", "ratio", "spread"}
    assert all(names <= set(row) and row["unit"] == "ms" for row in (whole, *phases))
