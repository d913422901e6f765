"""The channel contract over MPI: rank 0 runs pytest on this file, rank 1 holds the receivers.

Started by test_mpi_channel.py as ``mpirun -n 2 python mpi_contract.py``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from channel_contract import ChannelContract

from ftrt.errors import FtrtError, UsageError
from ftrt.mpi import World
from ftrt.transport.mpi_channel import TAGS, RecvMpi, SendMpi

ARRIVES_WITHIN_S = 2.0
NAMES = ("counters", "finished", "exhausted")


class FarReceiver:
    """The receiving end at rank 1, as rank 0 sees it: the contract's calls, carried there."""

    def __init__(self, comm, sender: SendMpi, tag: int, slots: int, slot_bytes: int) -> None:
        self._comm, self._sender, self._read = comm, sender, 0
        self._nacks = 0
        self._call("open", tag, slots, slot_bytes)

    def _call(self, name: str, *arguments):
        self._comm.send((name, arguments), 1)
        deadline = time.monotonic() + 10
        while not self._comm.iprobe(1):  # our own end goes on, as a waiting rank's does
            self._sender.nacked()
            assert time.monotonic() < deadline
        result = self._comm.recv(source=1)
        if isinstance(result, Exception):
            raise result
        return result

    def poll(self):
        """Give messages that were sent the time that they take."""
        deadline = time.monotonic() + ARRIVES_WITHIN_S
        while (frame := self._call("poll")) is None:
            if self.counters["nacks"] != self._nacks:
                self._nacks = self.counters["nacks"]
                self._until(lambda: self._sender.nacked() is not None)
                return None
            waiting = self._read < self._sender.frames_sent and self._sender.nacked() is None
            if not waiting or self.exhausted or time.monotonic() > deadline:
                return None
        frame.array.flags.writeable = self._call("writeable")
        self._read = frame.number
        return frame

    def release(self, number: int) -> None:
        self._call("release", number)
        self._until(lambda: self._sender.frames_released >= number)

    def corrupt(self, frame: int) -> None:
        self._call("damage", frame)

    def _until(self, true) -> None:
        deadline = time.monotonic() + ARRIVES_WITHIN_S
        while not true():
            self._call("serve")
            assert time.monotonic() < deadline

    def __getattr__(self, name: str):
        if name == "finished":  # the end of the stream is a message, too
            time.sleep(0.01)
        if name in NAMES:
            return self._call("get", name)
        raise AttributeError(name)


def serve(comm, wire) -> None:
    """Rank 1: carry out calls until told to stop."""
    end, frame = None, None
    while True:
        while not comm.iprobe(source=0):
            if end is not None:
                end.serve()
        name, arguments = comm.recv(source=0)
        try:
            if name == "stop":
                return
            if name == "open":
                tag, slots, slot_bytes = arguments
                if end is not None:
                    end.retire()
                end = RecvMpi(wire, 0, tag, slots=slots, slot_bytes=slot_bytes)
                result = None
            elif name == "get":
                result = getattr(end, *arguments)
            elif name == "damage":
                result = retry_until_there(end.damage, *arguments)
            elif name == "writeable":
                result = frame.array.flags.writeable
            else:
                result = getattr(end, name)(*arguments)
                frame = result
        except FtrtError as error:
            result = error
        comm.send(result, 0)


def retry_until_there(call, *arguments):
    deadline = time.monotonic() + ARRIVES_WITHIN_S
    while True:
        try:
            return call(*arguments)
        except UsageError:
            if time.monotonic() > deadline:
                raise


class TestMpi(ChannelContract):
    world: World
    tag = 0
    receivers: dict = {}

    def ends(self, slots=8, slot_bytes=4096):
        cls, world = type(self), type(self).world
        cls.tag += TAGS
        sender = SendMpi(world.wire, 1, cls.tag, slots=slots, slot_bytes=slot_bytes)
        receiver = FarReceiver(world.comm, sender, cls.tag, slots, slot_bytes)
        self.receivers[sender] = receiver
        return sender, receiver

    def seal(self, sender):
        sender.seal(sender.frames_sent)

    def corrupt(self, sender, frame):
        self.receivers[sender].corrupt(frame)


def main() -> int:
    world = World(data_over_mpi=True)
    if world.rank == 1:
        serve(world.comm, world.wire)
        return 0
    import mpi_contract  # pytest imports this file by its name: the class to fill is that one

    mpi_contract.TestMpi.world = world
    status = pytest.main([__file__, "-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]])
    world.comm.send(("stop", ()), 1)
    return int(status)


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)
