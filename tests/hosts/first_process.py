"""The first process of a test host: reaps whoever is left to it, and starts what is asked for.

``first_process.py serve SOCKET`` is the host; ``first_process.py ask DIRECTORY [-OPTION...] HOST
WORDS...`` is called by mpirun as ssh would be, anywhere, and passes its own descriptors on. Sockets
with a path join hosts that share a directory, whatever networks they are in.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time

_MOST_BYTES = 1 << 20


def serve(path: str) -> None:
    """Start what is asked for, tell each asker its status."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen(64)
    askers: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while True:
        if selector.select(0.02):
            asker, _ = server.accept()
            command, descriptors, _, _ = socket.recv_fds(asker, _MOST_BYTES, 3)
            child = os.fork()
            if child == 0:
                _become(command, descriptors)
            askers[child] = asker
            for descriptor in descriptors:
                os.close(descriptor)
        _reap(askers)


def _become(command: bytes, descriptors: list[int]) -> None:
    try:
        os.setsid()
        for at, descriptor in enumerate(descriptors):
            os.dup2(descriptor, at)
        os.execv("/bin/sh", [b"sh", b"-c", command])
    finally:
        os._exit(127)


def _reap(askers: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            asker = askers.pop(found[0], None)
            if asker is not None:
                status = os.waitstatus_to_exitcode(found[1])
                with contextlib.suppress(OSError):
                    asker.send(bytes([status if status >= 0 else 128 - status]))
                asker.close()


def ask(directory: str, words: list[str]) -> int:
    """Have a host run a command line; its status.

    If the host ends, nothing comes any more, and this waits for as long as its parent: a machine
    that loses power says no farewell.
    """
    while words[0].startswith("-"):
        words = words[1:]
    asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        asker.connect(f"{directory}/host-{words[0]}")
        socket.send_fds(asker, [" ".join(words[1:]).encode()], [0, 1, 2])
        status = asker.recv(1)
        parent = os.getppid()
        while not status and os.getppid() == parent:
            time.sleep(0.1)
        return status[0] if status else 255
    except OSError as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return 255


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[2], sys.argv[3:]))
