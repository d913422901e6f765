"""The grammar of ``--fault``."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrt.errors import UsageError
from ftrt.launch.faults import EXAMPLES, Fault, parse_fault, validate


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("kill:1@200msg", ("kill", 1, "messages", 200.0, None)),
        ("kill:0@recovery", ("kill", 0, "recovery", 0.0, None)),
        ("exit:12@1.5s", ("exit", 12, "seconds", 1.5, None)),
        ("segv:3@250ms", ("segv", 3, "seconds", 0.25, None)),
        ("stop:2@2s+800ms", ("stop", 2, "seconds", 2.0, 0.8)),
        ("stop:2@30msg+1.5s", ("stop", 2, "messages", 30.0, 1.5)),
    ],
)
def test_parses(spec, expected):
    fault = parse_fault(spec)
    got = (fault.kind, fault.rank, fault.when_kind, fault.when, fault.duration_s)
    assert got == expected
    assert fault.peer is None
    assert fault.spec == spec


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "kill",
        "kill:1",
        "kill:@3msg",
        "kill:x@3msg",
        "kill:-1@3msg",
        "kill:1@",
        "kill:1@3",
        "kill:1@3.5msg",
        "kill:1@0msg",
        "kill:1@-3s",
        "kill:1@3msg+1s",
        "kill:1-2@3msg",
        "kill:1@3msg ",
        "stop:1@3msg",
        "stop:1@3msg+0s",
        "stop:1@3msg+",
        "explode:1@3msg",
        "Kill:1@3msg",
    ],
)
def test_refuses_and_shows_what_works(spec):
    with pytest.raises(UsageError) as caught:
        parse_fault(spec)
    assert repr(spec) in str(caught.value)
    assert "for example" in str(caught.value)


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_every_example_is_right(kind):
    assert parse_fault(EXAMPLES[kind]).kind == kind


def test_a_gpu_fails_where_there_is_one():
    fault = parse_fault("gpu:1@3msg")
    validate(fault, 2, plane="nccl")
    with pytest.raises(UsageError, match="add --plane nccl"):
        validate(fault, 2)


def test_rank_out_of_range():
    fault = parse_fault("kill:4@3msg")
    validate(fault, 5)
    with pytest.raises(
        UsageError, match="no rank 4, the ranks are 0 to 3; for example kill:3@3msg"
    ):
        validate(fault, 4)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(UsageError):
        assert isinstance(parse_fault(text), Fault)
