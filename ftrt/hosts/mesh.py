"""The connections between the agents of a job: made, kept up, made again; nothing here blocks.

The head (agent 0) listens where everybody is told to look. Each agent connects to the head, learns
there where the others listen, and connects to those with a lower number. What is under way when a
connection ends is lost: whoever sends something that matters sends it again until it is answered.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass
from typing import Any

from ftrt.errors import DeadlineExceeded
from ftrt.hosts.frames import BadFrame, Connection

HEAD = 0
BEAT_S = 0.05
#: A connection that brings nothing for so long is given up and made again.
_SILENT_S = 1.0
_RETRY_S = 0.2
_MOST_STRANGERS = 64
Address = tuple[str, int]


@dataclass
class _Link:
    """What is known of another agent."""

    connection: Connection | None = None
    heard_s: float | None = None
    refused: int = 0
    next_try_s: float = 0.0


class Mesh:
    """One agent's connections.

    Parameters
    ----------
    me, count : int
        Our number and how many agents there are.
    key : bytes
        The job's token.
    head : (str, int)
        Where the head listens.
    listener : socket, optional
        The head's, which its launcher made.
    """

    def __init__(
        self, me: int, count: int, key: bytes, head: Address, listener: socket.socket | None = None
    ) -> None:
        self.me, self.count, self._key = me, count, key
        self._selector = selectors.EpollSelector()
        address = head[0] if me == HEAD else _address_towards(head)
        self._listener = listener or socket.create_server((address, 0), backlog=64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._addresses: dict[int, Address] = {HEAD: head, me: (address, self.port)}
        self._links = {agent: _Link() for agent in range(count) if agent != me}
        self._strangers: dict[Connection, float] = {}
        self._beat_at_s = 0.0
        self._found: list[tuple[int, dict[str, Any]]] = []

    @property
    def port(self) -> int:
        """Where we listen."""
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        """Descriptor that becomes readable when :meth:`step` has something to do."""
        return self._selector.fileno()

    def silence_s(self, agent: int, now_s: float) -> float:
        """How long nothing was heard of an agent, at a monotonic time; infinite if never."""
        heard_s = self._links[agent].heard_s
        return float("inf") if heard_s is None else now_s - heard_s

    def heard_anything(self, agent: int) -> bool:
        """Whether an agent was ever heard."""
        return self._links[agent].heard_s is not None

    def is_gone(self, agent: int) -> bool:
        """Whether nobody listens any more where an agent did, which its own host says."""
        return self._links[agent].refused >= 2

    def send(self, agent: int, message: dict[str, Any]) -> None:
        """Send a message if there is a connection; no promise that it comes."""
        connection = self._links[agent].connection
        if connection is not None:
            self._try(connection, lambda: connection.send(message))
            self._flush(connection)

    def send_all(self, message: dict[str, Any]) -> None:
        """Send a message to everybody there is a connection with."""
        for agent in self._links:
            self.send(agent, message)

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        """Do what is due; messages that have come, each with its sender."""
        now_s = time.monotonic()
        for key, events in self._selector.select(0):
            if key.data is None:
                self._accept(now_s)
                continue
            connection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ and connection.sock.fileno() >= 0:
                self._read(connection, now_s)
        self._look_after(now_s)
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + BEAT_S
            self.send_all({"k": "beat", "at": self._known()} if self.me == HEAD else _BEAT)
        found, self._found = self._found, []
        return found

    def await_all(self, timeout_s: float, look: Any = lambda: None) -> None:
        """Step until everybody was heard.

        Raises
        ------
        DeadlineExceeded
            Some were not.
        """
        deadline = time.monotonic() + timeout_s
        kept = []
        while missing := [a for a, link in self._links.items() if link.heard_s is None]:
            look()
            kept += self.step()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"agents {missing} were not heard of within {timeout_s:g} s by agent {self.me}"
                )
            time.sleep(0.002)
        self._found = kept + self._found

    def close(self) -> None:
        """End all connections, after what is queued is written or cannot be."""
        for link in self._links.values():
            if link.connection is not None:
                self._flush(link.connection)
                self._drop(link.connection)
        for stranger in list(self._strangers):
            self._drop(stranger)
        self._listener.close()
        self._selector.close()

    # -- connections ---------------------------------------------------------------------------

    def _known(self) -> dict[str, list]:
        return {str(agent): list(address) for agent, address in self._addresses.items()}

    def _accept(self, now_s: float) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            if len(self._strangers) >= _MOST_STRANGERS:
                sock.close()
                return
            self._begin(Connection(sock, self.me, self._key), now_s)

    def _begin(self, connection: Connection, now_s: float) -> None:
        self._strangers[connection] = now_s
        connection.send({"k": "hello", "at": list(self._addresses[self.me])})
        self._selector.register(
            connection, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
        )

    def _look_after(self, now_s: float) -> None:
        for agent, link in self._links.items():
            silent_s = self.silence_s(agent, now_s)
            if link.connection is not None and silent_s > _SILENT_S:
                self._drop(link.connection)
            address = self._addresses.get(agent)
            if link.connection is None and agent < self.me and address and now_s > link.next_try_s:
                link.next_try_s = now_s + _RETRY_S
                self._connect(agent, address, now_s)
        for stranger, since_s in list(self._strangers.items()):
            if now_s - since_s > _SILENT_S:
                self._drop(stranger)

    def _connect(self, agent: int, address: Address, now_s: float) -> None:
        if any(stranger.towards == agent for stranger in self._strangers):
            return
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        connection = Connection(sock, self.me, self._key, agent)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._note_refusal(connection, OSError(code, os.strerror(code)))
            sock.close()
            return
        self._begin(connection, now_s)

    def _note_refusal(self, connection: Connection, error: OSError) -> None:
        agent = connection.towards
        if agent is not None and isinstance(error, ConnectionRefusedError):
            self._links[agent].refused += 1

    def _read(self, connection: Connection, now_s: float) -> None:
        before = connection.peer
        messages = self._try(connection, connection.read) or []
        self._flush(connection)  # what waited for the other end's nonce
        peer = connection.peer
        if peer is None:
            return
        if before is None:
            self._welcome(connection, peer)
        link = self._links[peer]
        if not messages:
            return
        link.heard_s, link.refused = now_s, 0
        for message in messages:
            if message.get("k") in ("hello", "beat"):
                self._learn(peer, message)
            else:
                self._found.append((peer, message))

    def _welcome(self, connection: Connection, peer: int) -> None:
        """A stranger has proved who it is; an older connection with it is of no use any more."""
        self._strangers.pop(connection, None)
        link = self._links.get(peer)
        if link is None:
            self._drop(connection)
            connection.peer = None
            return
        if link.connection is not None and link.connection is not connection:
            self._drop(link.connection)
        if connection.sock.fileno() >= 0:
            link.connection = connection

    def _learn(self, peer: int, message: dict[str, Any]) -> None:
        if message["k"] == "hello":
            host, port = message["at"]
            self._addresses[peer] = (str(host), int(port))
        elif peer == HEAD:
            for agent, (host, port) in message.get("at", {}).items():
                self._addresses[int(agent)] = (str(host), int(port))

    def _flush(self, connection: Connection) -> None:
        if connection.sock.fileno() < 0:
            return
        self._try(connection, connection.write)
        if connection.sock.fileno() >= 0:
            events = selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if connection.waiting else 0
            self._selector.modify(connection, events, connection)

    def _try(self, connection: Connection, call: Any) -> Any:
        try:
            return call()
        except (OSError, BadFrame, ValueError) as error:
            if isinstance(error, OSError):
                self._note_refusal(connection, error)
            self._drop(connection)
            return None

    def _drop(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        for link in self._links.values():
            if link.connection is connection:
                link.connection = None
        if connection.sock.fileno() >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            connection.close()


_BEAT = {"k": "beat"}


def _address_towards(other: Address) -> str:
    """Our address on the network that leads to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(other)
        return str(probe.getsockname()[0])
