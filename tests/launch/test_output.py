"""Lines of several processes in one pipe, and tracebacks that many print and one shows."""

from ftrt.launch.output import MPIRUN, Lines, Tracebacks


def test_tags_are_taken_off():
    lines = Lines()
    assert lines.feed("[1,0]<stdout>: hello\n") == [(0, "hello")]
    assert lines.feed("[job-3@1,12]<stderr>:   indented\n") == [(12, "  indented")]
    assert lines.feed("[1,0]<stdout>: \n") == [(0, "")]
    assert lines.feed("prterun noticed\n") == [(MPIRUN, "prterun noticed")]
    assert lines.feed("[1,2] is text of a program\n") == [(MPIRUN, "[1,2] is text of a program")]


def test_half_a_line_waits_for_its_end():
    lines = Lines()
    assert lines.feed("[1,1]<stdout>: half [1,0]<stdout>: whole\n") == [(0, "whole")]
    assert lines.feed("[1,1]<stdout>: and half\n") == [(1, "half and half")]
    assert lines.feed("[1,1]<stdout>: cut[1,0]<stdout>: x\n") == [(0, "x")]
    assert lines.rest() == [(1, "cut")]


TRACE = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in g
ValueError: bad""".splitlines()


def test_interleaved_tracebacks_are_shown_once():
    shown = []
    tracebacks = Tracebacks(shown.append)
    for line in TRACE:
        for process in (0, 1, 2):
            tracebacks.feed(process, line)
    tracebacks.feed(1, "after")
    tracebacks.finish()
    assert shown == [*TRACE, "after"]
    assert tracebacks.was_shown("other frames\nValueError: bad\n")


def test_another_traceback_is_shown_too():
    shown = []
    tracebacks = Tracebacks(shown.append)
    for process, name in ((0, "KeyError"), (0, "TypeError"), (1, "TypeError")):
        for line in ("Traceback (most recent call last):", "  here", f"{name}: x"):
            tracebacks.feed(process, line)
    tracebacks.finish()
    assert [line for line in shown if line.endswith(": x")] == ["KeyError: x", "TypeError: x"]


def test_message_over_several_lines():
    shown = []
    tracebacks = Tracebacks(shown.append)
    for line in ("Traceback (most recent call last):", "  here", "E: one", "two", "three"):
        tracebacks.feed(0, line)
    tracebacks.finish()
    assert shown[-3:] == ["E: one", "two", "three"]
