"""Which GPU a process uses, and whom a spare can replace there."""

import pytest

from ftrt.agree.epoch import Membership, Outcome, plan_members
from ftrt.errors import UsageError
from ftrt.launch import gpus
from ftrt.transport.nccl import placement


@pytest.mark.parametrize(
    "ranks, spares, count, own, uncovered",
    [
        (2, 1, 2, [0, 1, 1], [0]),
        (2, 2, 2, [0, 1, 1, 0], []),
        (2, 1, 4, [0, 1, 2], []),
        (2, 3, 3, [0, 1, 2, 1, 0], []),
        (4, 2, 4, [0, 1, 2, 3, 3, 2], [0, 1]),
    ],
)
def test_places(ranks, spares, count, own, uncovered):
    assert [placement.gpu_of(p, ranks, count) for p in range(ranks + spares)] == own
    assert placement.uncovered(ranks, spares, count) == uncovered


def test_two_ranks_on_one_gpu_are_refused_before_nccl_does():
    with pytest.raises(UsageError, match="3 ranks need 3 GPUs and this host has 2"):
        placement.check(3, 2)
    with pytest.raises(UsageError, match="--plane host"):
        placement.check(1, 0)


def test_the_spare_on_a_free_gpu_takes_over():
    members = Membership.initial(2, 2, [0, 1, 1, 0])
    assert plan_members(members, {0}).promotions == ((0, 3),)
    assert plan_members(members, {1}).promotions == ((1, 2),)
    assert set(plan_members(members, {0, 1}).promotions) == {(0, 2), (1, 3)}
    after = plan_members(members, {0}).membership
    failed = plan_members(after, {0, 3})
    assert failed.outcome is Outcome.FAILED and "share GPUs" in failed.reason


def test_the_start_says_what_is_not_covered(monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    said = "\n".join(gpus.lines(2, 1, gpus.Gpus(2), 1))
    assert "spare 0 is on GPU 1 and can replace rank 1" in said
    assert "no spare can replace rank 0" in said
    assert "multicast is off and stays off" in said
    assert "--standby 0" in said and "made first" in "\n".join(gpus.lines(2, 1, gpus.Gpus(2), 0))


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.delenv("FTRT_NCCL_LIBRARY", raising=False)
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"ftrt\[cuda12\]"):
        gpus.check(2, 1)
