"""The benchmark of agreements measures and checks what it measures."""

import pytest

from ftrt.bench.agree import rows
from ftrt.errors import UsageError


def test_both_forms_are_measured_beside_mpi():
    table = rows(starts=1, blocks=2, ranks=(3,))
    assert [row["what"].split(",")[0] for row in table] == ["between hosts"] * 2 + ["one host"] * 2
    for row in table:
        assert row["size"] == 3 and row["raw"] > 0 and row["ftrt"] > 0
        assert row["ratio_least"] <= row["ratio"] <= row["ratio_most"]


@pytest.mark.parametrize("wrong", [{"ranks": (1,)}, {"ranks": (65,)}, {"ranks": ()}, {"starts": 0}])
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(UsageError, match="use 2 to 64 ranks"):
        rows(**wrong)
