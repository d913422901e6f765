"""When the spares are used up: everybody knows, the job shrinks where it may, and grows back."""

from pathlib import Path

import pytest
from runtime_job import run_job

HERE = Path(__file__).parent


@pytest.mark.parametrize("fault", ["kill:1@40msg", "kill:0@40msg"])
def test_everybody_knows_when_the_last_spare_is_used(tmp_path, fault):
    ended = run_job(
        tmp_path, ["-n", 2, "--spares", 1, "--fault", fault], HERE / "depleted_program.py"
    )
    assert ended.status == 0, ended.output
    (event,) = ended.named("depleted")
    assert "the next death of a rank ends this attempt" in event["reason"]
    (recovery,) = ended.named("recovery")
    assert event["t"] <= recovery["t"]
    assert "no spare is left" in ended.output
    for rank in (0, 1):
        (line,) = [x for x in ended.output.splitlines() if x.startswith(f"rank {rank} began")]
        assert line.endswith("told [0], now 0")
