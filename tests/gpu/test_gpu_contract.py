"""The real library keeps to the same contract as the fake, between two GPUs."""

import nccl_cases as cases
import pytest


@pytest.fixture(scope="module")
def living(tmp_path_factory):
    directory = tmp_path_factory.mktemp("contract")
    names = [case.__name__ for case in cases.ALIVE]
    return cases.run("real", directory, names, limit_s=110), directory


@pytest.mark.parametrize("case", [case.__name__ for case in cases.ALIVE])
def test_between_the_living(living, case):
    found, directory = living
    cases.verdict(found, case, (0, 1), directory)


@pytest.mark.parametrize("case", [case.__name__ for case in cases.DEADLY])
def test_after_a_death(tmp_path, case):
    found = cases.run("real", tmp_path, [case], limit_s=60)
    cases.verdict(found, case, (0,), tmp_path)
    print((tmp_path / "log-0").read_text())
