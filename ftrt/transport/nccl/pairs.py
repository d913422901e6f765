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
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftrt.transport.nccl.lib import ID_BYTES
from ftrt.transport.nccl.pair import Pair, no_slots

_SIZES = struct.Struct("<qq")
_TURN_TIMEOUT_S = 6.0
_LOOK_EVERY_S = 0.02


class Pairs:
    """The communicators of one process with others.

    Parameters
    ----------
    directory : path
        In shared memory, the same for all processes of the attempt.
    process : int
        Number of this process.
    prepare : callable
        Told of the slots, and the bytes of each, that a peer will probably need with us.
    slots : callable
        Makes slots of such a size to register with a new pair; None for none.
    alive : callable
        Whether a process lives.
    report : callable
        Gets a sentence about what was left behind.
    stuck : callable
        Gets a sentence when a thread does not come back from the library: this process is a
        failed one then.
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
        slots: Callable[[int, int], Any] = lambda slots, slot_bytes: None,
        report: Callable[[str], object] = lambda text: print(f"ftrt: {text}", file=sys.stderr),
        stuck: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._directory, self.process = directory, process
        directory.mkdir(exist_ok=True)
        self._device, self._library = device, library
        self._blocking, self._prepare, self._alive = blocking, prepare, alive
        self._slots, self._report, self._stuck = slots, report, stuck
        self._pairs: dict[str, Pair] = {}
        self._numbers = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.ended = 0
        self.failures: dict[int, int] = {}  # in a row, for each peer
        self.left_behind: list[tuple[str, Any]] = []
        self._ends: list[threading.Thread] = []
        self._turn_lock = threading.Lock()
        self._turns = 0
        self._turn_file: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="nccl offers")
        self._thread.start()

    # -- coming into being ---------------------------------------------------------------------

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
        pair.join(unique_id, self._slots_of(*sizes))
        return pair

    def _slots_of(self, slots: int, slot_bytes: int) -> Callable[[], Any]:
        return lambda: self._slots(slots, slot_bytes) if slots else None

    def _accept(self, names: list[str]) -> None:
        """Join what others have offered to this process."""
        for name in names:
            kind, _, pair_name = name.partition("-")
            if kind != "offer" or pair_name.split("-")[1] != str(self.process):
                continue
            if f"over-{pair_name}-1" in names:
                continue  # ours has ended
            offerer = int(pair_name.split("-")[0])
            with self._lock:
                if pair_name in self._pairs or self._stop.is_set():
                    continue
                if f"over-{pair_name}-0" in names or not self._alive(offerer):
                    self._unlink(pair_name)
                    continue
                pair = Pair(self._device, self._library, pair_name, 1, self._blocking)
                self._pairs[pair_name] = pair
            try:
                offered = (self._directory / name).read_bytes()
                slots, slot_bytes = _SIZES.unpack(offered[ID_BYTES:])
                pair.join(offered[:ID_BYTES], self._slots_of(slots, slot_bytes))
                if slots:
                    self._prepare(slots, slot_bytes)
            except (OSError, struct.error):
                pair.failure = "the offer was taken back"

    # -- in use --------------------------------------------------------------------------------

    def take(self, peer: int) -> Pair | None:
        """A connected pair with another process that nobody uses, None if there is none."""
        with self._lock:
            free = [p for p in self._pairs.values() if p.peer == peer and p.connected]
        for pair in free:
            usable = not (pair.taken or pair.retired or self._is_over_there(pair))
            if usable and self._claim(pair):
                return pair
        return None

    def take_or_offer(self, peer: int, sizes: tuple[int, int] = (0, 0)) -> Pair:
        """:meth:`take`, or a new one that is being made."""
        pair = self.take(peer)
        if pair is None:
            pair = self.offer(peer, sizes)
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
            self._accept(sorted(os.listdir(self._directory)))
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

    # -- the end -------------------------------------------------------------------------------

    def retire(self, pair: Pair) -> None:
        """End a pair in the background; its memory is kept until nothing can write it any more."""
        with self._lock:
            if pair.retired:
                return
            pair.retired = True
        thread = threading.Thread(
            target=self._end, args=(pair,), daemon=True, name=f"end {pair.name}"
        )
        with self._lock:
            self._ends = [t for t in self._ends if t.is_alive()] + [thread]
        thread.start()

    def _end(self, pair: Pair) -> None:
        with contextlib.suppress(OSError):  # the other end learns that nobody is here any more
            (self._directory / f"over-{pair.name}-{pair.rank}").touch()
        why = "it did not end in time"
        try:
            self._device.enter()
            ended = pair.stop()
            with self._turn():
                ended = pair.free() if ended else False
        except Exception as error:  # whatever it is, the memory may still be written
            ended, why = False, f"{type(error).__name__}: {error}"
        if ended:
            self.ended += 1
            pair.memory = pair.reserved = None
        else:  # what it uses may still be written: it is kept for good
            self.left_behind.append((pair.name, (pair.memory, pair.reserved)))
            self._report(f"process {self.process} leaves {pair.comm.name} behind: {why}")
        # A channel and its pair refer to each other: memory must not wait for the collector.
        pair.is_over, pair._make_slots = bool, no_slots
        if pair.comm.occupied:
            self._stuck(f"a thread does not come back from {pair.comm.name}")
        with self._lock:
            self._pairs.pop(pair.name, None)
        if self._is_over_there(pair) or not self._alive(pair.peer):
            self._unlink(pair.name)

    def _is_over_there(self, pair: Pair) -> bool:
        return (self._directory / f"over-{pair.name}-{pair.other}").exists()

    def _unlink(self, name: str) -> None:
        """The files of a pair of which neither end is left."""
        for file in (f"offer-{name}", f"claim-{name}", f"over-{name}-0", f"over-{name}-1"):
            (self._directory / file).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """This process's turn to end communicators, all of its own together; it comes after some
        seconds in any case."""
        with self._turn_lock:
            self._turns += 1
            if self._turns == 1:
                self._turn_file = self._wait_for_turn()
        try:
            yield
        finally:
            with self._turn_lock:
                self._turns -= 1
                if not self._turns and self._turn_file is not None:
                    self._turn_file.close()
                    self._turn_file = None

    def _wait_for_turn(self) -> Any:
        try:
            file = open(self._directory / "ending", "w")  # noqa: SIM115
        except OSError:
            return None  # the attempt's folder has gone: nobody else is there
        end_s = time.monotonic() + _TURN_TIMEOUT_S
        while time.monotonic() < end_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK_EVERY_S / 4)
        return file

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            try:
                names = sorted(os.listdir(self._directory))
                self._accept(names)
            except FileNotFoundError:
                names = []  # the attempt has ended
            for pair in self.everything():
                self._look_at(pair, names)
            self._sweep(names)

    def _look_at(self, pair: Pair, names: list[str]) -> None:
        if pair.retired:
            return
        if pair.is_late() or pair.failure:
            self.failures[pair.peer] = self.failures.get(pair.peer, 0) + 1
            self.retire(pair)
            return
        if pair.connected:
            self.failures.pop(pair.peer, None)
        try:
            over = pair.is_over()
        except Exception as error:  # one channel's trouble does not end looking after the others
            self._report(f"{pair.comm.name}: {type(error).__name__}: {error}")
            over = True
        if over or f"over-{pair.name}-{pair.other}" in names or not self._alive(pair.peer):
            self.retire(pair)

    def _sweep(self, names: list[str]) -> None:
        """What a process left that died before it saw that our end is over."""
        for name in names:
            kind, _, rest = name.partition("-")
            if kind != "over":
                continue
            pair_name, _, rank = rest.rpartition("-")
            ends = [int(part) for part in pair_name.split("-")[:2]]
            ours = ends[int(rank)] == self.process and pair_name not in self._pairs
            if ours and not self._alive(ends[1 - int(rank)]):
                self._unlink(pair_name)

    def close(self, timeout_s: float = 5.0) -> None:
        """End all, together; those that do not end in time are left behind."""
        self._stop.set()
        with self._lock:
            pairs = list(self._pairs.values())
        for pair in pairs:
            self.retire(pair)
        end_s = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._ends)
        for thread in [*threads, self._thread]:
            thread.join(max(0.0, end_s - time.monotonic()))
