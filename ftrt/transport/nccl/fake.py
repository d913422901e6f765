"""A library with NCCL's states and rules in plain Python, across real processes or inside one.

Ranks meet at a Unix socket that the id names. A group runs in its stream, in order; a receive
waits for its send, and for ever if none comes. What it keeps to, as NCCL 2.32 does (the same
contract suite runs against both):

- a non-blocking init is *in progress* until all ranks have joined, and until then every other call
  is an invalid argument, except for abort;
- the death of a peer shows in nothing on a path of shared memory (``transport="p2p"``): work to it
  waits; over sockets (``transport="socket"``) it is a remote error;
- revoke ends the work in flight; a second revoke, and finalize after it, are invalid arguments, new
  work is invalid usage; destroy is right;
- abort with a live captured graph does not come back until the graph is destroyed;
- memory that a communicator has registered must not be freed before that was taken back, or before
  the communicator has ended; whoever registers with one that has ended, or takes back what is not
  there, is told so. A window is made by all ranks together, of one size.

Where the real library would crash, any call on a communicator that was freed, this one raises.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import socket
import struct
import tempfile
import threading
import time
import uuid
import weakref
from typing import Any

from ftrt.transport.nccl.capabilities import FEATURES, Capabilities
from ftrt.transport.nccl.codes import Result
from ftrt.transport.nccl.fake_device import FakeMemory, live_graphs, stream_of

_POLL_S = 0.005
_HEAD = struct.Struct("<q")
_numbers = itertools.count(1)


class UseAfterFree(RuntimeError):
    """A call on a communicator whose memory the library has given back."""


#: What this process did that a real library would not have survived, or would have leaked.
misuses: list[str] = []


class FakeComm:
    """One rank's communicator."""

    def __init__(self, ranks: int, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        self.number = next(_numbers)
        self.peers: dict[int, socket.socket] = {}
        self.state = Result.IN_PROGRESS
        self.stop = threading.Event()  # the abort flag
        self.revoked = self.finalized = self.ended = False
        self.in_flight = 0
        self.graphs: list[Any] = []
        self.registered: dict[int, tuple[int, int]] = {}
        self.handles = itertools.count(1)
        self.lock, self.asking = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """End the connections."""
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()


class FakeNccl:
    """See :class:`ftrt.transport.nccl.lib.Library`.

    Parameters
    ----------
    transport : str
        ``"p2p"`` or ``"socket"``: what the death of a peer looks like.
    library : str
        Whose differences to show, ``"nccl"`` or ``"rccl"``.
    without : set of str
        Features to lack.
    teardown_s : float
        How long revoke and abort take while work is in flight.
    """

    def __init__(
        self,
        transport: str = "p2p",
        library: str = "fake",
        without: frozenset[str] = frozenset(),
        teardown_s: float = 0.05,
    ) -> None:
        self.capabilities = Capabilities(library, 23203, frozenset(FEATURES) - without)
        self._transport, self._teardown_s = transport, teardown_s
        self._memories: dict[int, FakeMemory] = {}
        self._comms: weakref.WeakSet[FakeComm] = weakref.WeakSet()

    @staticmethod
    def _must_exist(comm: FakeComm, call: str) -> None:
        if comm.ended:
            misuses.append(f"{call} on a communicator that was freed")
            raise UseAfterFree(misuses[-1])

    def unique_id(self) -> bytes:
        """The name of a socket."""
        return os.path.join(tempfile.gettempdir(), f"ftrt-fake-{uuid.uuid4().hex}").encode()

    def init(self, ranks: int, unique_id: bytes, rank: int, blocking: bool):
        """Meet the other ranks, in a thread of its own if non-blocking."""
        if not 0 <= rank < ranks:
            return Result.INVALID_ARGUMENT, None
        comm = FakeComm(ranks, rank)
        self._comms.add(comm)
        path = unique_id.rstrip(b"\0").decode()
        if blocking:
            self._meet(comm, path)
            return comm.state, comm
        threading.Thread(target=self._meet, args=(comm, path), daemon=True).start()
        return Result.IN_PROGRESS, comm

    def _meet(self, comm: FakeComm, path: str) -> None:
        try:
            self._join(comm, path)
            comm.state = Result.SUCCESS if not comm.stop.is_set() else Result.INTERNAL_ERROR
        except OSError:
            comm.state = Result.SYSTEM_ERROR

    def _join(self, comm: FakeComm, path: str) -> None:
        """Every pair is connected: the higher rank calls, the lower one answers."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own = f"{path}.{comm.rank}"
        listener.bind(own)
        listener.listen(comm.ranks)
        listener.settimeout(_POLL_S)
        try:
            for other in range(comm.rank):
                peer = self._call(comm, f"{path}.{other}")
                if peer is None:
                    return
                peer.sendall(_HEAD.pack(comm.rank))
                comm.peers[other] = peer
            while len(comm.peers) < comm.ranks - 1 and not comm.stop.is_set():
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    continue
                peer.settimeout(1.0)
                comm.peers[_HEAD.unpack(peer.recv(_HEAD.size))[0]] = peer
        finally:
            listener.close()
            os.unlink(own)
        for peer in comm.peers.values():
            peer.setblocking(False)

    def _call(self, comm: FakeComm, path: str) -> socket.socket | None:
        while not comm.stop.is_set():
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                peer.connect(path)
                return peer
            except OSError:
                peer.close()
                time.sleep(_POLL_S)
        return None

    def async_error(self, comm: FakeComm) -> tuple[int, int]:
        """The state, as it is."""
        self._must_exist(comm, "async_error")
        if not comm.asking.acquire(blocking=False):
            misuses.append("two threads ask for a communicator's state: a group is freed twice")
            raise UseAfterFree(misuses[-1])
        try:
            time.sleep(0)  # lets another thread come in, as a call into the library does
            return Result.SUCCESS, comm.state
        finally:
            comm.asking.release()

    def send(self, comm: FakeComm, peer: int, addresses, sizes, stream: int) -> int:
        """Queue a group of sends."""
        return self._post(comm, peer, addresses, sizes, stream, self._send_one)

    def receive(self, comm: FakeComm, peer: int, addresses, sizes, stream: int) -> int:
        """Queue a group of receives."""
        return self._post(comm, peer, addresses, sizes, stream, self._receive_one)

    def _post(self, comm, peer, addresses, sizes, stream, move) -> int:
        self._must_exist(comm, "work")
        refused = self._refused(comm)
        if refused:
            return refused
        if peer not in comm.peers:
            return Result.INVALID_ARGUMENT
        pairs = list(zip(list(addresses), list(sizes), strict=True))
        target = stream_of(stream)
        captured = target.captured is not None
        if captured:
            comm.graphs.append(target.captured)

        def work() -> None:
            with comm.lock:
                comm.in_flight += 1
            try:
                for address, size in pairs:
                    if comm.stop.is_set() or not move(comm, peer, int(address), int(size)):
                        return
            finally:
                with comm.lock:
                    comm.in_flight -= 1

        target.put(work)
        return Result.SUCCESS

    def _refused(self, comm: FakeComm) -> int:
        if comm.ended or comm.state == Result.IN_PROGRESS:
            return Result.INVALID_ARGUMENT
        if comm.revoked:
            return int(self.capabilities.rule("send_after_revoke"))
        return Result.SUCCESS if comm.state == Result.SUCCESS else comm.state

    def _send_one(self, comm: FakeComm, peer: int, address: int, size: int) -> bool:
        data = _HEAD.pack(size) + ctypes.string_at(address, size)
        return self._push(comm, peer, memoryview(data)) and self._pull(comm, peer, 1) is not None

    def _receive_one(self, comm: FakeComm, peer: int, address: int, size: int) -> bool:
        head = self._pull(comm, peer, _HEAD.size)
        if head is None:
            return False
        data = self._pull(comm, peer, _HEAD.unpack(head)[0])
        if data is None:
            return False
        ctypes.memmove(address, data, min(size, len(data)))
        return self._push(comm, peer, memoryview(b"\1"))

    def _push(self, comm: FakeComm, peer: int, data: memoryview) -> bool:
        while data and not comm.stop.is_set():
            try:
                data = data[comm.peers[peer].send(data) :]
            except BlockingIOError:
                self._pause(comm, peer, writing=True)
            except (OSError, KeyError):
                return self._peer_is_gone(comm)
        return not data

    def _pull(self, comm: FakeComm, peer: int, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size and not comm.stop.is_set():
            try:
                part = comm.peers[peer].recv(size - len(parts))
            except BlockingIOError:
                self._pause(comm, peer, writing=False)
                continue
            except (OSError, KeyError):
                part = b""
            if not part:
                self._peer_is_gone(comm)
                return None
            parts += part
        return bytes(parts) if len(parts) == size else None

    def _pause(self, comm: FakeComm, peer: int, writing: bool) -> None:
        watched = [comm.peers[peer]] if peer in comm.peers else []
        try:
            select.select([] if writing else watched, watched if writing else [], [], _POLL_S)
        except (OSError, ValueError):
            comm.stop.wait(_POLL_S)

    def _peer_is_gone(self, comm: FakeComm) -> bool:
        if self._transport == "socket":
            comm.state = Result.REMOTE_ERROR
        else:
            comm.stop.wait()  # nothing tells: the work waits until it is ended from here
        return False

    def revoke(self, comm: FakeComm) -> int:
        """End the work in flight in the background."""
        self._must_exist(comm, "revoke")
        if comm.ended or comm.revoked or comm.state == Result.IN_PROGRESS:
            return int(self.capabilities.rule("second_revoke"))
        comm.revoked = True
        comm.state = Result.IN_PROGRESS
        comm.stop.set()
        threading.Thread(target=self._quiesce, args=(comm,), daemon=True).start()
        return Result.IN_PROGRESS

    def _quiesce(self, comm: FakeComm) -> None:
        if comm.in_flight:
            time.sleep(self._teardown_s)
        while comm.in_flight:
            time.sleep(_POLL_S)
        comm.state = Result.SUCCESS

    def abort(self, comm: FakeComm) -> int:
        """End everything; waits while a captured graph lives."""
        self._must_exist(comm, "abort")
        comm.stop.set()
        while self._live_graphs(comm):
            time.sleep(_POLL_S)
        self._quiesce(comm)
        comm.registered.clear()
        comm.ended = True
        comm.close()
        return Result.SUCCESS

    def _live_graphs(self, comm: FakeComm) -> bool:
        return any(graph.work is work for graph in list(live_graphs) for work in comm.graphs)

    def finalize(self, comm: FakeComm) -> int:
        """Begin a clean end: it has ended once nothing is in flight."""
        if comm.revoked:
            return int(self.capabilities.rule("finalize_after_revoke"))
        if comm.ended or comm.finalized or comm.state == Result.IN_PROGRESS:
            return Result.INVALID_ARGUMENT
        comm.finalized = True
        comm.state = Result.IN_PROGRESS

        def drain() -> None:
            while comm.in_flight and not comm.stop.is_set():
                time.sleep(_POLL_S)
            comm.state = Result.SUCCESS

        threading.Thread(target=drain, daemon=True).start()
        return Result.IN_PROGRESS

    def destroy(self, comm: FakeComm) -> int:
        """Free it; without finalize or revoke it waits for the work in flight, for ever."""
        self._must_exist(comm, "destroy")
        if comm.state == Result.IN_PROGRESS:
            return Result.INVALID_ARGUMENT
        while comm.in_flight:
            time.sleep(_POLL_S)
        if comm.registered:
            misuses.append(f"{len(comm.registered)} registrations were left to a destroy")
        if self._live_graphs(comm):
            misuses.append("a communicator was destroyed while a graph of it lived")
        comm.registered.clear()
        comm.ended = True
        comm.close()
        return Result.SUCCESS

    def shrink(self, comm: FakeComm, exclude: list[int], abort: bool):
        """A communicator of the others; of one rank alone here, which needs no meeting."""
        invalid = not exclude or comm.rank in exclude or comm.ended
        if invalid or comm.state == Result.IN_PROGRESS or comm.state == Result.REMOTE_ERROR:
            return Result.INVALID_ARGUMENT, None
        if abort:
            comm.stop.set()
            self._quiesce(comm)
        left = [rank for rank in range(comm.ranks) if rank not in exclude]
        child = FakeComm(len(left), left.index(comm.rank))
        child.state = Result.SUCCESS
        return Result.SUCCESS, child

    # -- memory ----------------------------------------------------------------------------------

    def mem_alloc(self, size: int) -> int:
        """Memory of the library's own."""
        memory = FakeMemory(size)
        self._memories[memory.address] = memory
        return memory.address

    def mem_free(self, address: int) -> int:
        """Give it back; refused while a communicator has it registered."""
        users = [c for c in list(self._comms) if address in (r[0] for r in c.registered.values())]
        if users or address not in self._memories:
            misuses.append("memory was freed while it was registered, or was none of the library's")
            return Result.INVALID_ARGUMENT
        self._memories.pop(address).free()
        return Result.SUCCESS

    def register(self, comm: FakeComm, address: int, size: int):
        """Note that a buffer is registered."""
        self._must_exist(comm, "register")
        memory = self._memories.get(address)
        if comm.state == Result.IN_PROGRESS or memory is None or size > memory.size:
            return Result.INVALID_ARGUMENT, None
        handle = next(comm.handles)
        comm.registered[handle] = (address, size)
        return Result.SUCCESS, handle

    def deregister(self, comm: FakeComm, handle: int) -> int:
        """Take it back; not with work in flight, which may still use it."""
        self._must_exist(comm, "deregister")
        if comm.in_flight:
            misuses.append("memory was deregistered with work in flight")
        if comm.registered.pop(handle, None) is None:
            misuses.append("what was deregistered was not registered")
            return Result.INVALID_USAGE
        return Result.SUCCESS

    def register_window(self, comm: FakeComm, address: int, size: int):
        """All ranks tell each other their size, and wait until all have."""
        code, handle = self.register(comm, address, size)
        if code or comm.revoked:
            return code or Result.INVALID_USAGE, None
        for peer in comm.peers:
            if not self._push(comm, peer, memoryview(_HEAD.pack(size))):
                return Result.REMOTE_ERROR, None
        for peer in comm.peers:
            told = self._pull(comm, peer, _HEAD.size)
            if told is None or _HEAD.unpack(told)[0] != size:
                return Result.INVALID_ARGUMENT, None
        return Result.SUCCESS, handle

    deregister_window = deregister
