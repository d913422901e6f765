"""The channels of one process between GPUs, and the communicators kept ready for its next ones.

The processes meet in a folder of the attempt's shared memory: this version of the plane serves
the GPUs of one host.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftrt.errors import UsageError
from ftrt.transport.nccl import placement
from ftrt.transport.nccl.pairs import Pair, Pairs
from ftrt.transport.nccl.recv import RecvNccl
from ftrt.transport.nccl.send import SendNccl
from ftrt.transport.nccl.slots import SlotMemory
from ftrt.transport.paths import chain, generation_of, ring_path, stream_id

FOLDER = "nccl"
PATHS = ("graph", "eager", "revoke")


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
    ) -> None:
        if path not in PATHS:
            raise UsageError(f"FTRT_NCCL_MODE={path}: one of {', '.join(PATHS)}")
        self.device, self.library, self.process = device, library, process
        self.alive = alive
        self.path, self.transfer_timeout_s = path, transfer_timeout_s
        self._process_of = process_of
        self._directory = directory / FOLDER
        self._spares, self._standby = spares, standby
        self._reserve: dict[tuple[int, int], list[SlotMemory]] = {}
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._make_reserves, daemon=True, name="nccl reserve").start()
        self.pairs = Pairs(
            self._directory,
            process,
            device,
            library,
            path != "revoke",
            self.set_aside,
            alive,
        )
        self._sending: dict[str, SendNccl] = {}
        self._receiving: dict[str, RecvNccl] = {}
        self.sizes = (0, 0)

    # -- what channels need -----------------------------------------------------------------------

    def payload(self, value: Any) -> Any:
        """An application's array as the plane moves it."""
        return self.device.array(value)

    def memory_of(self, slots: int, slot_bytes: int) -> SlotMemory:
        """Slots that nobody has used: of the reserve if there are some, else new ones."""
        reserve = self._reserve.get((slots, slot_bytes))
        if reserve:
            return reserve.pop()
        return SlotMemory(self.device, slots, slot_bytes)

    def _make_reserves(self) -> None:
        self.device.enter()
        while True:
            size = self._wanted.get()
            reserve = self._reserve.setdefault(size, [])
            if not reserve:
                reserve.append(SlotMemory(self.device, *size))

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
        pair = self.pairs.take_or_offer(peer)
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
        self.set_aside(slots, slot_bytes)
        self.provide(peer)
        return channel

    def make_recv(self, link: Any, after: int) -> tuple[RecvNccl, int] | None:
        """Attach to the newest channel of a link that ends here, if it is newer than ``after``."""
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
            if other == self.process:
                continue
            for _ in range(self._standby - self.pairs.free_with(other)):
                self.pairs.offer(other, self.sizes)

    def held(self) -> dict[str, int]:
        """What this process holds now: for a test, and for whoever looks for a leak."""
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "gpu_bytes": self.device.used_bytes(),
            "pairs": len(self.pairs.everything()),
            "left_behind": len(self.pairs.left_behind),
        }

    def ready(self) -> bool:
        """Whether no communicator is in the making."""
        pairs: list[Pair] = self.pairs.everything()
        return all(pair.connected or pair.failure for pair in pairs)

    def close(self) -> None:
        """End all communicators."""
        self.pairs.close()


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
    if os.environ.get("FTRT_NCCL_LIBRARY") == "fake":
        from ftrt.transport.nccl.fake import FakeNccl
        from ftrt.transport.nccl.fake_device import FakeDevice

        library, made = FakeNccl(), FakeDevice
    else:
        from ftrt.transport.nccl.cuda import CudaDevice
        from ftrt.transport.nccl.lib import Nccl

        library, made = Nccl(), CudaDevice
    own = placement.gpu_of(process, ranks, gpus)
    index = placement.share(own) if os.environ.get("FTRT_SHARE_GPU") == "1" else own
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
    )
