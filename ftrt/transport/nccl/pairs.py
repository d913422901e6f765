"""Communicators of two processes: made and connected beforehand, taken when one is needed.

A process offers a communicator to another one in a file; the other joins it. Both do so in threads
of their own: making one takes 20 to 600 ms, and a peer may never come. Whoever wants to use a
connected pair for a channel claims it, by creating a file that nobody else can create.

The end of a communicator frees device memory, which waits until all kernels of the process have
ended, and meanwhile every other call into CUDA waits too, of the application's thread as well. So
(1) one process of a host ends communicators at a time: two could wait for each other's kernels;
(2) a thread that calls nothing of CUDA looks after the pairs in use, and aborts one whose peer is
gone, or that is overdue: the application's thread may be stuck behind its kernels.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftrt.errors import FtrtError
from ftrt.transport.nccl.groups import words
from ftrt.transport.nccl.lib import ID_BYTES
from ftrt.transport.nccl.states import Communicator, State

CONNECT_TIMEOUT_S = 20.0
_SIZES = struct.Struct("<qq")
_TURN_TIMEOUT_S = 6.0
_LOOK_EVERY_S = 0.02
_POLL_S = 0.0005


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
        self.comm = Communicator(library, f"communicator {name}", blocking)
        self.connected = self.taken = self.retired = False
        self.failure: str | None = None
        self.memory: Any = None
        #: Whether the channel that uses it has ended, or should; asked in a thread of its own.
        self.is_over: Callable[[], bool] = lambda: False
        self.made_s = 0.0
        self._device = device
        self.stream: Any = None
        self.graphs: list[Any] = []

    def join(self, unique_id: bytes) -> None:
        """Join and exchange a message, in a thread of its own."""
        threading.Thread(
            target=self._join, args=(unique_id,), daemon=True, name=f"join {self.name}"
        ).start()

    def _join(self, unique_id: bytes) -> None:
        try:
            began_s = time.monotonic()
            self._device.enter()
            self.comm.join(2, unique_id, self.rank)
            self._until(self.comm.settled)
            self.stream = self._device.stream()
            memory = self._device.memory(64)
            moves = [self.comm.send, self.comm.receive]
            for move in moves if self.rank == 0 else reversed(moves):
                move(self.other, words([memory.address]), words([64]), self.stream.handle)
            self._until(lambda: self._device.idle(self.stream))
            memory.free()
            self.made_s = time.monotonic() - began_s
            self.connected = True
        except (FtrtError, OSError, RuntimeError) as error:
            self.failure = f"{type(error).__name__}: {error}"

    @staticmethod
    def _until(ready: Callable[[], bool]) -> None:
        end_s = time.monotonic() + CONNECT_TIMEOUT_S
        while not ready():
            if time.monotonic() > end_s:
                raise FtrtError(f"the peer did not connect within {CONNECT_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Let its kernels leave: graphs first, then revoke, where the library has it."""
        graphs, self.graphs = self.graphs, []
        for graph in graphs:
            graph.destroy()
        comm = self.comm
        if comm.state is State.READY and comm.library.capabilities.has("revoke"):
            with contextlib.suppress(FtrtError):  # it is aborted then
                comm.revoke()

    def free(self) -> bool:
        """End it, after :meth:`stop`. May take a second.

        Returns
        -------
        bool
            False if it was left behind.
        """
        return self.comm.end()


class Pairs:
    """The communicators of one process with others.

    Parameters
    ----------
    directory : path
        In shared memory, the same for all processes of the attempt.
    process : int
        Number of this process.
    """

    def __init__(
        self,
        directory: Path,
        process: int,
        device: Any,
        library: Any,
        blocking: bool = True,
        prepare: Callable[[int, int], object] = lambda slots, slot_bytes: None,
        alive: Callable[[int], bool] = lambda process: True,
    ) -> None:
        self._directory, self.process = directory, process
        directory.mkdir(exist_ok=True)
        self._device, self._library = device, library
        self._blocking, self._prepare, self._alive = blocking, prepare, alive
        self._pairs: dict[str, Pair] = {}
        self._numbers = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.ended = 0
        self.left_behind: list[tuple[str, Any]] = []
        self._ends: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._watch, daemon=True, name="nccl offers")
        self._thread.start()

    def offer(self, peer: int, sizes: tuple[int, int] = (0, 0)) -> Pair:
        """Begin to make a communicator with another process.

        ``sizes`` are the slots, and the bytes of each, that it will probably need there.
        """
        with self._lock:
            self._numbers += 1
            name = f"{self.process}-{peer}-{self._numbers}"
            pair = self._pairs[name] = Pair(self._device, self._library, name, 0, self._blocking)
        unique_id = self._library.unique_id()
        new = self._directory / f"new-{name}"
        new.write_bytes(unique_id.ljust(ID_BYTES, b"\0") + _SIZES.pack(*sizes))
        new.rename(self._directory / f"offer-{name}")
        pair.join(unique_id)
        return pair

    def take(self, peer: int) -> Pair | None:
        """A connected pair with another process that nobody uses, None if there is none."""
        with self._lock:
            free = [p for p in self._pairs.values() if p.peer == peer and p.connected]
        for pair in free:
            if not pair.taken and not pair.retired and self._claim(pair):
                return pair
        return None

    def take_or_offer(self, peer: int) -> Pair:
        """:meth:`take`, or a new one that is being made."""
        pair = self.take(peer)
        if pair is None:
            pair = self.offer(peer)
            self._claim(pair)
        return pair

    def _claim(self, pair: Pair) -> bool:
        try:
            path = self._directory / f"claim-{pair.name}"
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            pair.taken = True
            return False
        pair.taken = True
        return True

    def find(self, name: str) -> Pair | None:
        """The pair of a name that the other end has claimed."""
        with self._lock:
            pair = self._pairs.get(name)
        if pair is None:
            self._accept()
            with self._lock:
                pair = self._pairs.get(name)
        if pair is not None:
            pair.taken = True
        return pair

    def free_with(self, peer: int) -> int:
        """Pairs with another process that are not in use, those in the making included."""
        with self._lock:
            return sum(
                p.peer == peer and not (p.taken or p.retired or p.failure)
                for p in self._pairs.values()
            )

    def everything(self) -> list[Pair]:
        """All pairs."""
        with self._lock:
            return list(self._pairs.values())

    def retire(self, pair: Pair) -> None:
        """End a pair in the background; its memory is kept until nothing can write it any more."""
        with self._lock:
            if pair.retired:
                return
            pair.retired = True

        def work() -> None:
            self._device.enter()
            pair.stop()
            with self._turn():
                ended = pair.free()
            if ended:
                self.ended += 1
                pair.memory = None
            else:  # what it uses may still be written: it is kept for good
                self.left_behind.append((pair.name, pair.memory))
            with self._lock:
                self._pairs.pop(pair.name, None)
            for kind in ("offer", "claim"):
                (self._directory / f"{kind}-{pair.name}").unlink(missing_ok=True)

        thread = threading.Thread(target=work, daemon=True, name=f"end {pair.name}")
        with self._lock:
            self._ends = [t for t in self._ends if t.is_alive()] + [thread]
        thread.start()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """This process's turn to end communicators; it comes after some seconds in any case."""
        with open(self._directory / "ending", "w") as file:
            end_s = time.monotonic() + _TURN_TIMEOUT_S
            while time.monotonic() < end_s:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOOK_EVERY_S / 4)
            yield

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self._accept()
            for pair in self.everything():
                if pair.retired or pair.comm.state is State.INIT:
                    continue
                if pair.is_over() or not self._alive(pair.peer):
                    self.retire(pair)

    def _accept(self) -> None:
        """Join what others have offered to this process."""
        for name in sorted(os.listdir(self._directory)):
            kind, _, pair_name = name.partition("-")
            if kind != "offer" or pair_name.split("-")[1] != str(self.process):
                continue
            with self._lock:
                if pair_name in self._pairs or self._stop.is_set():
                    continue
                pair = Pair(self._device, self._library, pair_name, 1, self._blocking)
                self._pairs[pair_name] = pair
            try:
                offered = (self._directory / name).read_bytes()
                pair.join(offered[:ID_BYTES])
                slots, slot_bytes = _SIZES.unpack(offered[ID_BYTES:])
                if slots:
                    self._prepare(slots, slot_bytes)
            except OSError:
                pair.failure = "the offer was taken back"

    def close(self, timeout_s: float = 5.0) -> None:
        """End all, together; those that do not end in time are left behind."""
        self._stop.set()
        with self._lock:
            pairs = list(self._pairs.values())
        for pair in pairs:
            if pair.comm.state is not State.INIT:
                self.retire(pair)
        end_s = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._ends)
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
