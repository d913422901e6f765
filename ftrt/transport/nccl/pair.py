"""One end of a communicator of two processes: joined, connected, replayed through, and ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from ftrt.errors import FtrtError, PeerFailed
from ftrt.transport.nccl.groups import words
from ftrt.transport.nccl.states import Communicator, State

CONNECT_TIMEOUT_S = 20.0
_POLL_S = 0.0005
_GRAPH_WAIT_S = 0.5


def no_slots() -> None:
    """No memory to register."""
    return None


class Pair:
    """One end of a communicator of two processes.

    Attributes
    ----------
    name : str
        ``offerer-joiner-number``.
    peer : int
        The other process.
    connected : bool
        A message went each way; work may be posted.
    failure : str or None
        Why it will never be connected.
    """

    def __init__(self, device: Any, library: Any, name: str, rank: int, blocking: bool) -> None:
        offerer, joiner, self.number = (int(part) for part in name.split("-"))
        self.name, self.rank = name, rank
        self.peer = joiner if rank == 0 else offerer
        self.other = 1 - rank
        self.comm = Communicator(library, f"communicator {name}", blocking, device.enter)
        self.connected = self.taken = self.retired = False
        self.failure: str | None = None
        #: What may be written through it, kept until it has ended.
        self.memory: Any = None
        #: Slots that are registered when it is made, for the first channel of their size.
        self.reserved: Any = None
        self._make_slots: Callable[[], Any] = no_slots
        self._slots_lock = threading.Lock()
        self._slots_made = False
        #: Whether the channel that uses it has ended, or should; asked in a thread of its own.
        self.is_over: Callable[[], bool] = lambda: False
        self.made_s = 0.0
        self.stream: Any = None
        self._device = device
        self._began_s = time.monotonic()
        self._graphs: dict[Any, Any] = {}
        self._graph_lock = threading.Lock()
        self._stopped = False

    def join(self, unique_id: bytes, slots: Callable[[], Any] = no_slots) -> None:
        """Join and exchange a message, in a thread of its own.

        ``slots`` makes memory to register, None for none. The first message goes through it, so
        that what the library does at the first use of memory is done before it is needed.
        """
        self._make_slots = slots
        threading.Thread(
            target=self._join, args=(unique_id,), daemon=True, name=f"join {self.name}"
        ).start()

    def _own_slots(self) -> Any:
        """Made by whoever needs them first: the join, or the channel that has claimed the pair."""
        with self._slots_lock:
            if not self._slots_made:
                self._slots_made = True
                self.reserved = self._make_slots()
            return self.reserved

    def _join(self, unique_id: bytes) -> None:
        try:
            self._device.enter()
            self.comm.join(2, unique_id, self.rank)
            self._until(self.comm.settled)
            self.stream = self._device.stream()
            reserved = self._own_slots()
            if reserved is not None and reserved.registers:
                window = reserved.registers == "window"
                self.comm.register(reserved.memory.address, reserved.memory.size, window)
            memory = self._device.memory(64) if reserved is None else reserved.memory
            moves = [self.comm.send, self.comm.receive]
            for move in moves if self.rank == 0 else reversed(moves):
                move(self.other, words([memory.address]), words([64]), self.stream.handle)
            self._until(lambda: self._device.idle(self.stream))
            if reserved is None:
                memory.free()
            self.made_s = time.monotonic() - self._began_s
            self.connected = True
        except Exception as error:  # of CUDA too: whoever waits for it reads why it never comes
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self.is_late():
                raise FtrtError(self.failure)
            time.sleep(_POLL_S)

    def is_late(self) -> bool:
        """Whether its time to be connected is over; it has failed then.

        Asked by a thread of its own too: a join may hang inside the library.
        """
        late = time.monotonic() - self._began_s > CONNECT_TIMEOUT_S
        if late and not self.connected and self.failure is None:
            self.failure = f"the peer did not connect within {CONNECT_TIMEOUT_S:g} s"
        return late and not self.connected

    def bind(self, memory: Any) -> None:
        """Keep a channel's slots until this has ended, and register them if they are not yet."""
        self.memory = memory
        if memory.registers and memory is not self.reserved and self.connected:
            self.comm.register(memory.memory.address, memory.memory.size)

    def slots_of(self, slots: int, slot_bytes: int) -> Any:
        """The slots that it registers when it is made, if they are of this size; only once."""
        own = self._own_slots()
        fits = own is not None and (own.slots, own.slot_bytes) == (slots, slot_bytes)
        return own if fits and self.memory is None else None

    # -- graphs ----------------------------------------------------------------------------------

    def replay(self, key: Any, stream: Any, work: Callable[[], None]) -> None:
        """Launch what ``work`` puts into a stream, captured the first time.

        Raises
        ------
        PeerFailed
            The pair is being ended, by whichever thread: no graph may live then.
        """
        with self._graph_lock:
            if self._stopped:
                raise PeerFailed(f"{self.comm.name} is being ended")
            try:
                graph = self._graphs.get(key)
                if graph is None:
                    graph = self._graphs[key] = self._device.capture(stream, work)
                graph.launch(stream)
            except PeerFailed:
                raise
            except Exception as error:
                if not self._stopped and not self.comm.is_ending:
                    raise
                raise PeerFailed(f"{self.comm.name} is being ended: {error}") from error

    def has_graph(self, key: Any) -> bool:
        """Whether something was captured under a key."""
        return key in self._graphs

    @property
    def graphs(self) -> int:
        """How many were captured and live."""
        return len(self._graphs)

    def _destroy_graphs(self, limit_s: float) -> bool:
        if not self._graph_lock.acquire(timeout=limit_s):
            return False  # a thread is stuck in a launch behind its kernels
        try:
            graphs, self._graphs = self._graphs, {}
            for graph in graphs.values():
                graph.destroy()
        finally:
            self._graph_lock.release()
        return True

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> bool:
        """Let its kernels leave: graphs first, then revoke, where the library has it.

        Returns
        -------
        bool
            False if a graph could not be destroyed: the communicator must not be freed then.
        """
        self._stopped = True
        destroyed = self._destroy_graphs(_GRAPH_WAIT_S)
        comm = self.comm
        if comm.state is State.READY and comm.library.capabilities.has("revoke"):
            with contextlib.suppress(FtrtError):  # it is aborted then
                comm.revoke()
        return destroyed or self._destroy_graphs(4 * _GRAPH_WAIT_S)

    def free(self) -> bool:
        """End it, after :meth:`stop`. May take a second.

        Returns
        -------
        bool
            False if it was left behind.
        """
        return self.comm.end()
