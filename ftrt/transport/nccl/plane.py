"""The channels of one process between GPUs, and the communicators kept ready for its next ones.

The processes meet in a folder of the attempt's shared memory: this version of the plane serves
the GPUs of one host.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftrt.errors import RecoveryImpossible, UsageError
from ftrt.transport.nccl import placement
from ftrt.transport.nccl.pair import Pair
from ftrt.transport.nccl.pairs import Pairs
from ftrt.transport.nccl.recv import RecvNccl
from ftrt.transport.nccl.send import SendNccl
from ftrt.transport.nccl.settings import PATHS, REGISTER, Settings, one_of
from ftrt.transport.nccl.slots import Remains, SlotMemory
from ftrt.transport.paths import chain, generation_of, ring_path, stream_id

FOLDER = "nccl"
_QUIET_TIMEOUT_S = 10.0
_FAILURES = 3  # communicators with a living process that did not come about, in a row


class NcclPlane:
    """The channels of this process.

    Parameters
    ----------
    directory : path
        Of the attempt's shared memory.
    process : int
        Number of this process.
    process_of : callable
        Process that holds a rank in the epoch that this process is in, None if unknown.
    device, library
        The GPU, and the library that moves slots.
    spares : list of int
        Processes that may take over a rank one day and do not share this GPU.
    standby : int
        Connected communicators kept for each process that may become a peer; 0 for none.
    alive : callable
        Whether a process lives; asked by a thread of its own.
    transfer_timeout_s : float
        A group that was announced and has not come by then ends its channel.
    path : str
        ``"graph"`` (batches of a usual size are replayed as CUDA graphs), ``"eager"``, or
        ``"revoke"`` (non-blocking communicators).
    register : str
        ``"buffer"``, ``"window"`` or ``"off"``; off where the library cannot.
    """

    packs = True

    def __init__(
        self,
        directory: Path,
        process: int,
        process_of: Callable[[int], int | None],
        device: Any,
        library: Any,
        *,
        spares: list[int],
        standby: int = 1,
        path: str = "graph",
        transfer_timeout_s: float = 5.0,
        alive: Callable[[int], bool] = lambda process: True,
        register: str = "buffer",
        stuck: Callable[[str], object] = lambda text: None,
    ) -> None:
        one_of("FTRT_NCCL_REGISTER", register, REGISTER)
        one_of("FTRT_NCCL_MODE", path, PATHS)
        self.device, self.library, self.process = device, library, process
        self.alive = alive
        self.path, self.transfer_timeout_s = path, transfer_timeout_s
        self.registers = "" if register == "off" else can_register(library, register)
        self._process_of = process_of
        self._directory = directory / FOLDER
        self._spares, self._standby = spares, standby
        self._reserve: dict[tuple[int, int], list[SlotMemory]] = {}
        self._wanted: queue.SimpleQueue[tuple[int, int] | Remains | None] = queue.SimpleQueue()
        self._memory_thread = threading.Thread(
            target=self._look_after_memory, daemon=True, name="nccl memory"
        )
        self._memory_thread.start()
        self.kept_bytes = 0  # of slots that never became quiet
        self.pairs = Pairs(
            self._directory,
            process,
            device,
            library,
            path != "revoke",
            self.set_aside,
            alive,
            self._slots_to_register,
            stuck=stuck,
        )
        self._sending: dict[str, SendNccl] = {}
        self._receiving: dict[str, RecvNccl] = {}
        self.sizes = (0, 0)

    # -- what channels need -----------------------------------------------------------------------

    def payload(self, value: Any) -> Any:
        """An application's array as the plane moves it."""
        return self.device.array(value)

    def memory_of(self, slots: int, slot_bytes: int, pair: Pair) -> SlotMemory:
        """Slots that nobody has used: the pair's own, of the reserve if there are some, or new."""
        own = pair.slots_of(slots, slot_bytes)
        if own is not None:
            return own
        reserve = self._reserve.get((slots, slot_bytes))
        with contextlib.suppress(IndexError):  # the other thread that may ask was faster
            if reserve:
                return reserve.pop()
        return self._new_memory(slots, slot_bytes)

    def _new_memory(self, slots: int, slot_bytes: int) -> SlotMemory:
        try:
            return SlotMemory(
                self.device,
                slots,
                slot_bytes,
                library=self.library,
                registers=self.registers,
                bury=self._wanted.put,
            )
        except MemoryError as error:
            raise UsageError(
                f"GPU {self.device.index} has no room for {slots} slots of {slot_bytes} bytes: "
                f"use a smaller window= or slot_bytes=, or --standby 0 ({error})"
            ) from error

    def _slots_to_register(self, slots: int, slot_bytes: int) -> SlotMemory | None:
        """For a new pair: what its first channel will need, made and registered beforehand."""
        return self._new_memory(slots, slot_bytes) if self.registers else None

    def _look_after_memory(self) -> None:
        """Make reserves, and free what is over once no kernel is at work in it."""
        self.device.enter()
        remains: list[Remains] = []
        while True:
            item: tuple[int, int] | Remains | None
            try:
                item = self._wanted.get(timeout=0.005 if remains else None)
            except queue.Empty:
                item = (0, 0)
            if item is None:
                break
            if isinstance(item, Remains):
                remains.append(item)
            elif item[0]:
                self._make_reserve(item)
            remains = [one for one in remains if not self._is_buried(one)]
        end_s = time.monotonic() + 2.0
        while remains and time.monotonic() < end_s:
            remains = [one for one in remains if not self._is_buried(one)]
            time.sleep(0.005)

    def _make_reserve(self, size: tuple[int, int]) -> None:
        reserve = self._reserve.setdefault(size, [])
        with contextlib.suppress(Exception):  # then the channel says what is wrong
            if not reserve:
                reserve.append(self._new_memory(*size))

    def _is_buried(self, remains: Remains) -> bool:
        try:
            if remains.is_quiet():
                remains.free()
                return True
        except Exception:  # the GPU is lost: nothing can be given back, and nothing needs to be
            return True
        if time.monotonic() - remains.since_s < _QUIET_TIMEOUT_S:
            return False
        self.kept_bytes += remains.bytes
        _kept.append(remains)
        return True

    def set_aside(self, slots: int, slot_bytes: int) -> None:
        """Have one set of slots of a size in reserve, for the channel after a fault."""
        self.sizes = (slots, -(-slot_bytes // 64) * 64)
        if self._standby:
            self._wanted.put(self.sizes)

    # -- channels -------------------------------------------------------------------------------

    def make_send(self, link: Any, generation: int, *, slots: int, slot_bytes: int) -> SendNccl:
        """Make a sender's end to the process that holds the link's destination."""
        peer = self._process_of(link.dest)
        if peer is None:
            raise UsageError(f"no process holds rank {link.dest}")
        slot_bytes = -(-slot_bytes // 64) * 64
        key = f"{link.stream}/{link.dest}"
        if key in self._sending:
            self._sending.pop(key).retire()
        if self.pairs.failures.get(peer, 0) >= _FAILURES:
            raise RecoveryImpossible(
                f"process {self.process}: no communicator with process {peer} came about, "
                f"{_FAILURES} times in a row; NCCL_DEBUG=WARN says why"
            )
        self.sizes = (slots, slot_bytes)
        pair = self.pairs.take_or_offer(peer, self.sizes)
        channel = SendNccl(
            self,
            ring_path(self._directory, link.stream, link.source, link.dest, generation),
            pair,
            slots=slots,
            slot_bytes=slot_bytes,
            job=link.job,
            stream_id=stream_id(link.stream, link.source, link.dest),
            generation=generation,
            source=link.source,
            dest=link.dest,
        )
        self._sending[key] = channel
        self._remove_before(link, generation)
        self.set_aside(slots, slot_bytes)
        self.provide(peer)
        return channel

    def _remove_before(self, link: Any, generation: int) -> None:
        """The files of earlier channels: a receiver attaches to the newest alone."""
        for path in chain(self._directory, link.stream, link.source, link.dest):
            if generation_of(path) < generation:
                for name in (path.name, f"page-{path.name}", f"pair-{path.name}"):
                    path.with_name(name).unlink(missing_ok=True)

    def make_recv(self, link: Any, after: int) -> tuple[RecvNccl, int] | None:
        """Attach to the newest channel of a link that ends here, if it is newer than ``after``."""
        try:
            return self._attach(link, after)
        except FileNotFoundError:
            return None  # a newer one was made just now

    def _attach(self, link: Any, after: int) -> tuple[RecvNccl, int] | None:
        source = self._process_of(link.source)
        for path in reversed(chain(self._directory, link.stream, link.source, link.dest)):
            generation = generation_of(path)
            if generation <= after:
                return None
            name = self._pair_name(path)
            offerer, joiner, _ = (int(part) for part in name.split("-"))
            if {offerer, joiner} != {source, self.process}:
                continue  # of a process that was replaced since
            pair = self.pairs.find(name)
            if pair is None:
                return None
            key = f"{link.stream}/{link.source}"
            if key in self._receiving:
                self._receiving.pop(key).retire()
            channel = RecvNccl(self, path, pair)
            self._receiving[key] = channel
            self.set_aside(channel.slots, channel.slot_bytes)
            self.provide(None)
            return channel, generation
        return None

    def _pair_name(self, path: Path) -> str:
        return (path.with_name(f"pair-{path.name}")).read_text()

    def is_stale(self, channel: SendNccl | RecvNccl, rank: int) -> bool:
        """Whether the process at the other end does not hold ``rank`` any more."""
        return channel.peer != self._process_of(rank)

    def provide(self, peer: int | None) -> None:
        """Begin to make the standby communicators that are missing."""
        peers = [*self._spares, *([] if peer is None else [peer])]
        for other in dict.fromkeys(peers):
            if other == self.process or not self.alive(other):
                continue
            for _ in range(self._standby - self.pairs.free_with(other)):
                self.pairs.offer(other, self.sizes)

    def held(self) -> dict[str, int]:
        """What this process holds now: for a test, and for whoever looks for a leak."""
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "shm": sum(1 for _ in self._directory.parent.rglob("*")),
            "gpu_bytes": self.device.used_bytes(),
            "pairs": len(self.pairs.everything()),
            "left_behind": len(self.pairs.left_behind),
            "kept_bytes": self.kept_bytes,
        }

    def ready(self) -> bool:
        """Whether no communicator is in the making."""
        pairs: list[Pair] = self.pairs.everything()
        return all(pair.connected or pair.failure for pair in pairs)

    def close(self) -> None:
        """End all communicators."""
        self.pairs.close()
        self._reserve.clear()
        self._wanted.put(None)
        self._memory_thread.join(3.0)


#: Slots in which something was still at work when their time was over.
_kept: list[Remains] = []


def can_register(library: Any, how: str) -> str:
    """``how`` as far as a library can do it: a window, a buffer, or not at all (empty)."""
    has = library.capabilities.has
    if not (has("mem_alloc") and has("registration")):
        return ""
    if how == "window" and (not has("windows") or os.environ.get("NCCL_WIN_ENABLE") == "0"):
        return "buffer"
    return how


def die_stuck(process: int) -> Callable[[str], None]:
    """What ends a process in which a thread hangs inside the library, so that it is replaced."""

    def die(text: str) -> None:
        print(
            f"ftrt: process {process}: {text}; the process ends, so that a spare can replace it",
            file=sys.stderr,
            flush=True,
        )
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def plane_of(
    directory: Path,
    process: int,
    process_of: Callable[[int], int | None],
    *,
    ranks: int,
    spares: int,
    gpus: int,
    standby: int,
    path: str,
    transfer_timeout_s: float,
    alive: Callable[[int], bool],
) -> NcclPlane:
    """The plane of a process, on the GPU that the placement gives it.

    With ``FTRT_NCCL_LIBRARY=fake`` a library and a device in plain memory, for tests.
    """
    library: Any
    made: Any
    settings = Settings.of()
    if settings.fake:
        from ftrt.transport.nccl.fake import FakeNccl
        from ftrt.transport.nccl.fake_device import FakeDevice

        library, made = FakeNccl(without=settings.without), FakeDevice
    else:
        from ftrt.transport.nccl.cuda import CudaDevice
        from ftrt.transport.nccl.lib import Nccl

        library, made = Nccl(), CudaDevice
    own = placement.gpu_of(process, ranks, gpus)
    index = placement.share(own) if settings.share else own
    others = [
        spare
        for spare in range(ranks, ranks + spares)
        if placement.gpu_of(spare, ranks, gpus) != own
    ]
    return NcclPlane(
        directory,
        process,
        process_of,
        made(index),
        library,
        spares=others,
        standby=standby,
        path=path,
        transfer_timeout_s=transfer_timeout_s,
        alive=alive,
        register=settings.register,
        stuck=die_stuck(process),
    )
