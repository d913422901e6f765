"""The pictures and the transcript in the pages are those of the code."""

from pathlib import Path

import pytest

from ftrt.agree.tables import TRANSITIONS, markdown, mermaid, mermaid_agreement, outcomes

from .host import Host, told

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "recovery.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize(
    ("draw", "page"),
    [
        (mermaid, DOC),
        (markdown, DOC),
        (outcomes, DOC),
        (mermaid, ARCHITECTURE),
        (mermaid_agreement, ARCHITECTURE),
        (outcomes, ARCHITECTURE),
    ],
)
def test_the_drawings_are_those_of_the_tables(draw, page):
    assert draw() in page, "run `python -m ftrt.agree.tables` and put its output into the page"


def test_another_table_is_another_drawing(monkeypatch):
    before = mermaid(), markdown()
    pair = next(pair for pair, (_, after) in TRANSITIONS.items() if after != (pair[0],))
    monkeypatch.delitem(TRANSITIONS, pair)
    assert mermaid() != before[0] and markdown() != before[1]


def test_the_transcript_is_what_happens():
    host = Host(3, spares=2)
    host.die(1, by="mutex")
    host.step()
    host.die(3, by="pidfd")  # the record that promotes it has been asked for
    host.settle()
    assert told(host) in DOC, told(host)
