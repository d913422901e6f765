"""The application's policy for heirs, in a process of its own: it can neither stop the agent nor
make it wait.

``--heirs FILE:NAME`` names a function ``NAME(lost, living, streams)`` in a Python file. ``lost``
are the ranks that no spare takes over, ``living`` those that may inherit, ``streams`` all known
``(stream, source, dest)``. It returns a mapping with a living rank for each lost one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError

#: A policy that has not answered by then is refused: a recovery waits for it.
LIMIT_S = 1.0
_LOAD_LIMIT_S = 20.0

Answer = tuple[tuple[tuple[int, int], ...] | None, str]


def parse(spec: str) -> tuple[Path, str]:
    """File and name of a policy.

    Raises
    ------
    UsageError
        It is not ``FILE:NAME``, or there is no such file.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier():
        raise UsageError(f"--heirs {spec!r}: write FILE.py:FUNCTION")
    if not path.is_file():
        raise UsageError(f"--heirs {spec!r}: there is no file {file!r}")
    return path.resolve(), name


class Policy:
    """Asks the function in another process, each time with a limit."""

    def __init__(self, spec: str):
        path, name = parse(spec)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ftrt.host.policy", str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._ready, why = self._line(_LOAD_LIMIT_S)
        if self._ready is None or "refused" in self._ready:
            self.close()
            reason = why or (self._ready or {}).get("refused")
            raise UsageError(f"--heirs {spec!r} {reason}")

    def ask(
        self, lost: Iterable[int], living: Iterable[int], streams: Iterable[tuple[str, int, int]]
    ) -> Answer:
        """The (rank, heir) pairs that it wants, or None and why there are none."""
        question = {"lost": list(lost), "living": list(living), "streams": list(streams)}
        if self._process.poll() is not None:
            return None, "ended its process before"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps(question) + "\n").encode())
            self._process.stdin.flush()
        except OSError:
            return None, "ended its process"
        answer, why = self._line(LIMIT_S)
        if answer is None:
            self.close()
            return None, why
        if "refused" in answer:
            return None, answer["refused"]
        return tuple((int(rank), int(heir)) for rank, heir in answer["heirs"]), ""

    def _line(self, limit_s: float) -> tuple[dict[str, Any] | None, str]:
        assert self._process.stdout is not None
        descriptor, text = self._process.stdout.fileno(), b""
        end_s = time.monotonic() + limit_s
        while not text.endswith(b"\n"):
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                return None, f"did not answer within {limit_s:g} s"
            part = os.read(descriptor, 1 << 16)
            if not part:
                return None, "ended its process"
            text += part
        return json.loads(text), ""

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _load(path: str, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("ftrt_heirs", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _answered(policy: Callable[..., Any], question: dict[str, Any]) -> dict[str, Any]:
    try:
        streams = [tuple(stream) for stream in question["streams"]]
        found = policy(tuple(question["lost"]), tuple(question["living"]), streams)
        return {"heirs": [[int(rank), int(heir)] for rank, heir in dict(found).items()]}
    except Exception as error:  # the application's, of whatever class
        return {"refused": f"raised {type(error).__name__}: {error}"}


def main(path: str, name: str) -> None:
    """Answer questions on standard input until it ends, one line of JSON each."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the policy prints is no answer

    def say(answer: dict[str, Any]) -> None:
        os.write(out, (json.dumps(answer) + "\n").encode())

    try:
        policy = _load(path, name)
    except Exception as error:
        say({"refused": f"cannot be loaded ({type(error).__name__}: {error})"})
        return
    say({})
    for line in sys.stdin:
        say(_answered(policy, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
