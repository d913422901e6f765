"""Messages on a TCP connection between agents: each proves that its sender knows the job's token.

Both ends begin with who they are and a nonce. A frame is a length, a code and a JSON text; the code
is made with the token from both nonces, who sends it, how many came before, and the text. So none
can be made, changed, left out, repeated or sent back by anybody else. Nothing is kept secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

from ftrt.errors import FtrtError

_MAGIC = b"ftrt-1\0\0"
_HELLO = struct.Struct("<8sI16s")
_HEAD = struct.Struct("<I16s")
#: Longest frame; the first may only be short, since nothing is known of who sends it.
MOST_BYTES, _FIRST_BYTES = 1 << 24, 1 << 12
#: What may wait to be sent. Beyond that the other end is as good as gone.
_MOST_WAITING = 1 << 25
#: How long the kernel tries to bring what was sent, before it gives the connection up.
_UNANSWERED_MS = 3000


class BadFrame(FtrtError):
    """What came was not made by an agent of this job."""


class Connection:
    """One end of a connection that does not block.

    Parameters
    ----------
    sock : socket
        Connected, or connecting.
    me : int
        Our number.
    key : bytes
        The job's token.
    towards : int, optional
        Whom we mean to reach.

    Attributes
    ----------
    peer : int or None
        Who is at the other end, once it has proved it.
    """

    def __init__(
        self, sock: socket.socket, me: int, key: bytes, towards: int | None = None
    ) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        self.sock, self.towards = sock, towards
        self.peer: int | None = None
        self._key = hashlib.blake2b(key, digest_size=32).digest()
        self._me, self._nonce = me, os.urandom(16)
        self._claimed: int | None = None
        self._their_nonce = b""
        self._sent = self._taken = 0
        self._held: list[bytes] = []  # until the other end's nonce is known
        self._out = bytearray(_HELLO.pack(_MAGIC, me, self._nonce))
        self._in = bytearray()

    def fileno(self) -> int:
        """Descriptor to be polled."""
        return self.sock.fileno()

    @property
    def waiting(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._out)

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; :meth:`write` brings it on its way.

        Raises
        ------
        OSError
            The other end takes nothing any more.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        if len(self._out) + len(text) > _MOST_WAITING:
            raise OSError("the other end takes nothing")
        if self._their_nonce:
            self._put(text)
        else:
            self._held.append(text)

    def _put(self, text: bytes) -> None:
        code = self._code(self._nonce, self._their_nonce, self._me, self._sent, text)
        self._sent += 1
        self._out += _HEAD.pack(len(text), code) + text

    def _code(self, own: bytes, other: bytes, sender: int, count: int, text: bytes) -> bytes:
        made = hashlib.blake2b(key=self._key, digest_size=16)
        made.update(own + other + struct.pack("<IQ", sender, count))
        made.update(text)
        return made.digest()

    def write(self) -> None:
        """Write what the kernel takes.

        Raises
        ------
        OSError
            The connection has ended.
        """
        with contextlib.suppress(BlockingIOError):
            while self._out:
                del self._out[: self.sock.send(self._out)]

    def read(self) -> list[dict[str, Any]]:
        """Take the messages that have come.

        Raises
        ------
        OSError
            The connection has ended.
        BadFrame
            Something else came than what an agent of this job sends.
        """
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sock.recv(1 << 18)
                if not data:
                    raise ConnectionResetError("the other end is closed")
                self._in += data
                if len(data) < 1 << 18:
                    break
        return self._messages()

    def _messages(self) -> list[dict[str, Any]]:
        if self._claimed is None and not self._take_hello():
            return []
        found = []
        while len(self._in) >= _HEAD.size:
            length, code = _HEAD.unpack_from(self._in)
            if length > (MOST_BYTES if self.peer is not None else _FIRST_BYTES):
                raise BadFrame(f"a frame of {length} bytes is too long")
            end = _HEAD.size + length
            if len(self._in) < end:
                break
            text = bytes(self._in[_HEAD.size : end])
            del self._in[:end]
            found.append(self._checked(text, code))
        return found

    def _take_hello(self) -> bool:
        if not _MAGIC.startswith(self._in[: len(_MAGIC)]):
            raise BadFrame("the other end is no agent of this version of ftrt")
        if len(self._in) < _HELLO.size:
            return False
        _, claimed, nonce = _HELLO.unpack_from(self._in)
        if claimed == self._me or nonce == self._nonce:
            raise BadFrame("the other end says what we say")
        del self._in[: _HELLO.size]
        self._claimed, self._their_nonce = claimed, nonce
        held, self._held = self._held, []
        for text in held:
            self._put(text)
        return True

    def _checked(self, text: bytes, code: bytes) -> dict[str, Any]:
        claimed = -1 if self._claimed is None else self._claimed
        right = self._code(self._their_nonce, self._nonce, claimed, self._taken, text)
        if not hmac.compare_digest(right, code):
            raise BadFrame("a frame was not made with this job's token")
        self._taken += 1
        self.peer = claimed
        message = json.loads(text)
        if not isinstance(message, dict):
            raise BadFrame("a frame holds no message")
        return message

    def close(self) -> None:
        """End it."""
        self.sock.close()
