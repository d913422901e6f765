"""Connections between agents: made, proved, kept up, made again; strangers get nowhere."""

from __future__ import annotations

import socket
import time

import pytest

from ftrt.errors import DeadlineExceeded
from ftrt.hosts.frames import BadFrame, Connection
from ftrt.hosts.mesh import Mesh

KEY, OTHER = b"k" * 32, b"o" * 32


def meshes(count: int, keys: dict[int, bytes] | None = None) -> list[Mesh]:
    listener = socket.create_server(("127.0.0.1", 0))
    head = listener.getsockname()[:2]
    keys = keys or {}
    made = [Mesh(0, count, KEY, head, listener)]
    return made + [Mesh(agent, count, keys.get(agent, KEY), head) for agent in range(1, count)]


def step(all_of_them: list[Mesh], done, limit_s: float = 5.0) -> dict[int, list]:
    """Step all until ``done(messages)``; messages by receiver."""
    found: dict[int, list] = {mesh.me: [] for mesh in all_of_them}
    end = time.monotonic() + limit_s
    while not done(found):
        assert time.monotonic() < end, found
        for mesh in all_of_them:
            found[mesh.me] += mesh.step()
        time.sleep(0.001)
    return found


def all_heard(all_of_them: list[Mesh]) -> bool:
    return all(a.heard_anything(b.me) for a in all_of_them for b in all_of_them if a is not b)


@pytest.fixture
def three():
    made = meshes(3)
    yield made
    for mesh in made:
        mesh.close()


def test_everybody_finds_everybody_through_the_head_and_messages_keep_their_order(three):
    step(three, lambda _: all_heard(three))
    for number in range(100):
        three[1].send(2, {"k": "x", "n": number, "fill": "." * 10_000})
        three[2].send(0, {"k": "y", "n": number})
    found = step(three, lambda f: len(f[2]) == 100 and len(f[0]) == 100)
    assert [(sender, m["n"]) for sender, m in found[2]] == [(1, n) for n in range(100)]
    assert [(sender, m["n"]) for sender, m in found[0]] == [(2, n) for n in range(100)]


def test_a_connection_that_broke_is_made_again(three):
    step(three, lambda _: all_heard(three))
    broken = three[0]._links[1].connection
    broken.sock.shutdown(socket.SHUT_RDWR)
    step(three, lambda _: three[0]._links[1].connection not in (None, broken))
    step(three, lambda _: three[1]._links[0].connection is not None)
    three[1].send(0, {"k": "x"})
    step(three, lambda f: f[0] == [(1, {"k": "x"})])


def test_whoever_does_not_know_the_token_is_nobody():
    made = meshes(2, {1: OTHER})
    try:
        end = time.monotonic() + 0.6
        step(made, lambda f: time.monotonic() > end)
        assert not made[0].heard_anything(1) and not made[1].heard_anything(0)
        with pytest.raises(DeadlineExceeded, match=r"agents \[1\] were not heard of"):
            made[0].await_all(0.05)
    finally:
        for mesh in made:
            mesh.close()


def test_nobody_listens_where_the_head_has_ended():
    made = meshes(2)
    step(made, lambda _: all_heard(made))
    made[0].close()
    step(made[1:], lambda _: made[1].is_gone(0))
    assert made[1].silence_s(0, time.monotonic()) > 0
    made[1].close()


def pair() -> tuple[Connection, Connection]:
    one, other = socket.socketpair()
    return Connection(one, 1, KEY), Connection(other, 2, KEY)


def exchange(a: Connection, b: Connection) -> list[dict]:
    got = []
    for _ in range(2):
        a.write()
        b.write()
        got += b.read()
        assert not a.read()
    return got


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "not made with this job's token"),
        (lambda data: data + data, "not made with this job's token"),
        (lambda data: b"\xff\xff\xff\xff" + data[4:], "too long"),
    ],
    ids=["altered", "repeated", "too long"],
)
def test_a_frame_that_was_tampered_with_is_refused(change, says):
    a, b = pair()
    a.send({"k": "first"})
    assert exchange(a, b) == [{"k": "first"}] and b.peer == 1
    a.send({"k": "pay", "amount": 1})
    data = change(bytes(a._out))
    a._out.clear()
    a.sock.send(data)
    with pytest.raises(BadFrame, match=says):
        b.read()
        b.read()


def test_what_is_sent_back_to_its_sender_is_refused():
    a, b = pair()
    a.send({"k": "first"})
    b.send({"k": "first"})
    a.write()
    b.write()
    assert a.read() == [] and b.read() == []  # nonces first
    a.write()
    echo = b.sock.recv(1 << 16)
    b.sock.send(echo)
    with pytest.raises(BadFrame, match="token"):
        a.read()


def test_something_else_than_an_agent_is_refused():
    a, b = pair()
    b.sock.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    with pytest.raises(BadFrame, match="no agent"):
        a.read()
