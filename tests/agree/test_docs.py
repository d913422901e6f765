"""The pictures and the transcript in docs/recovery.md are those of the code."""

from pathlib import Path

import pytest

from ftrt.agree.tables import markdown, mermaid, outcomes

from .host import Host, told

DOC = (Path(__file__).parents[2] / "docs" / "recovery.md").read_text()


@pytest.mark.parametrize("draw", [mermaid, markdown, outcomes])
def test_the_drawings_are_those_of_the_table(draw):
    assert draw() in DOC, "run `python -m ftrt.agree.tables` and put its output into the page"


def test_the_transcript_is_what_happens():
    host = Host(3, spares=2)
    host.die(1, by="mutex")
    host.step()
    host.die(3, by="pidfd")  # the record that promotes it has been asked for
    host.settle()
    assert told(host) in DOC, told(host)
