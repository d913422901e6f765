"""The contract of a library, as cases that two ranks go through: the fake's and the real one's.

Each case is a function of an :class:`Ends`; both ranks call it. Run as
``python nccl_cases.py LIBRARY RANK DIRECTORY CASE...``; writes one JSON line per case.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from ftrt.transport.nccl.codes import Result
from ftrt.transport.nccl.groups import words
from ftrt.transport.nccl.states import Communicator, State

JOIN_S = 60.0


class Ends:
    """What one rank of a case has."""

    def __init__(self, library, device, rank: int, directory: Path, case: str) -> None:
        self.library, self.device, self.rank = library, device, rank
        self._directory, self._case = directory, case
        self._ids = 0

    def tell(self, what: str, data: bytes = b"") -> None:
        path = self._directory / f"{self._case}-{self.rank}-{what}"
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").rename(path)

    def hear(self, what: str) -> bytes:
        path = self._directory / f"{self._case}-{1 - self.rank}-{what}"
        until(path.exists, JOIN_S)
        return path.read_bytes()

    def unique_id(self) -> bytes:
        self._ids += 1
        if self.rank == 0:
            made = self.library.unique_id()
            self.tell(f"id{self._ids}", made)
            return made
        return self.hear(f"id{self._ids}")

    def joined(self, blocking: bool = False) -> Communicator:
        """A communicator of both, connected in both directions."""
        comm = Communicator(self.library, self._case, blocking)
        comm.join(2, self.unique_id(), self.rank)
        until(comm.settled, JOIN_S)
        stream = self.device.stream()
        memory = self.device.memory(16)
        moves = (comm.send, comm.receive)
        for move in moves if self.rank == 0 else moves[::-1]:
            move(1 - self.rank, words([memory.address]), words([16]), stream.handle)
        until(lambda: self.device.idle(stream), JOIN_S)
        memory.free()
        return comm

    def parked(self, comm: Communicator):
        """A stream with a receive that nobody will send for."""
        stream, memory = self.device.stream(), self.device.memory(64)
        comm.receive(1 - self.rank, words([memory.address]), words([64]), stream.handle)
        time.sleep(0.05)
        assert not self.device.idle(stream)
        return stream, memory

    def group(self, comm: Communicator, call: str) -> int:
        """The plain result of a group of one."""
        stream, memory = self.device.stream(), self.device.memory(16)
        move = getattr(self.library, call)
        peer = 1 - self.rank
        return move(comm.handle, peer, words([memory.address]), words([16]), stream.handle)


def until(ready, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come")
        time.sleep(0.001)


def messages_arrive_in_order(ends: Ends, blocking: bool = False) -> None:
    comm = ends.joined(blocking)
    sizes = [16, 4096, 1 << 20]
    stream = ends.device.stream()
    memories = [ends.device.memory(size) for size in sizes]
    addresses = words([memory.address for memory in memories])
    if ends.rank == 0:
        for number, memory in enumerate(memories):
            ends.device.poke(memory.address + memory.size - 8, 7 + number)
        comm.send(1, addresses, words(sizes), stream.handle)
    else:
        comm.receive(0, addresses, words(sizes), stream.handle)
    until(lambda: ends.device.idle(stream))
    found = [ends.device.peek(m.address + m.size - 8) for m in memories]
    assert found == [7, 8, 9]
    assert comm.finish()
    assert comm.state is State.GONE


def messages_arrive_in_order_blocking(ends: Ends) -> None:
    messages_arrive_in_order(ends, blocking=True)


def in_progress_until_all_have_joined(ends: Ends) -> None:
    identity = ends.unique_id()
    comm = Communicator(ends.library, "lonely")
    if ends.rank == 0:
        comm.join(2, identity, 0)
        time.sleep(0.2)
        assert not comm.settled()
        assert ends.library.async_error(comm.handle) == (Result.SUCCESS, Result.IN_PROGRESS)
        assert ends.group(comm, "send") == Result.INVALID_ARGUMENT
        ends.tell("go")
    else:
        ends.hear("go")
        comm.join(2, identity, 1)
    until(comm.settled, JOIN_S)
    assert comm.finish()


def a_join_that_nobody_answers_can_be_aborted(ends: Ends) -> None:
    if ends.rank == 0:
        comm = Communicator(ends.library, "left alone")
        comm.join(2, ends.unique_id(), 0)
        time.sleep(0.1)
        assert not comm.settled()
        assert comm.end(10.0)
        assert comm.state is State.GONE


def revoke_ends_work_and_leaves_nothing_but_destroy(ends: Ends) -> None:
    comm = ends.joined()
    if ends.rank == 0:
        stream, _ = ends.parked(comm)
        comm.revoke()
        until(comm.quiet)
        until(lambda: ends.device.idle(stream))
        rules = ends.library.capabilities.rule
        assert ends.library.revoke(comm.handle) == rules("second_revoke")
        assert ends.library.finalize(comm.handle) == rules("finalize_after_revoke")
        assert ends.group(comm, "send") == rules("send_after_revoke")
        assert comm.end(10.0)
        ends.tell("over")
        return
    ends.hear("over")
    assert comm.end(10.0)


def a_revoked_communicator_shrinks(ends: Ends) -> None:
    comm = ends.joined()
    if ends.rank == 0:
        assert ends.library.shrink(comm.handle, [], False)[0] == Result.INVALID_ARGUMENT
        ends.parked(comm)
        comm.revoke()
        until(comm.quiet)
        code, child = ends.library.shrink(comm.handle, [1], False)
        assert code in (Result.SUCCESS, Result.IN_PROGRESS)
        until(lambda: ends.library.async_error(comm.handle)[1] != Result.IN_PROGRESS)
        until(lambda: ends.library.async_error(child)[1] == Result.SUCCESS)
        ends.library.abort(child)
        assert comm.end(10.0)
        ends.tell("over")
        return
    ends.hear("over")
    assert comm.end(10.0)


def abort_ends_parked_work(ends: Ends, blocking: bool = True) -> None:
    comm = ends.joined(blocking)
    stream, _ = ends.parked(comm)
    begin = time.monotonic()
    assert comm.end(10.0)
    print(f"abort took {time.monotonic() - begin:.3f} s", file=sys.stderr)
    until(lambda: ends.device.idle(stream))


def a_live_graph_holds_the_abort_until_it_is_destroyed(ends: Ends) -> None:
    comm = ends.joined(blocking=True)
    stream, memory = ends.device.stream(), ends.device.memory(64)
    peer, where, sizes = 1 - ends.rank, words([memory.address]), words([64])

    def work() -> None:
        (comm.send if ends.rank == 0 else comm.receive)(peer, where, sizes, stream.handle)

    graph = ends.device.capture(stream, work)
    graph.launch(stream)
    until(lambda: ends.device.idle(stream))
    ends.tell("replayed")
    ends.hear("replayed")
    if ends.rank == 0:
        assert not comm.end(1.0)
        assert comm.state is State.LEFT_BEHIND
        graph.destroy()
        ends.tell("over")
        return
    ends.hear("over")
    graph.destroy()
    assert comm.end(10.0)


def the_death_of_a_peer_shows_in_nothing(ends: Ends) -> None:
    comm = ends.joined(blocking=True)
    if ends.rank == 1:
        ends.hear("parked")
        os.kill(os.getpid(), signal.SIGKILL)
    stream, _ = ends.parked(comm)
    ends.tell("parked")
    time.sleep(1.0)
    assert ends.library.async_error(comm.handle) == (Result.SUCCESS, Result.SUCCESS)
    assert not ends.device.idle(stream)
    begin = time.monotonic()
    assert comm.end(10.0)
    print(f"abort after a death took {time.monotonic() - begin:.3f} s", file=sys.stderr)
    until(lambda: ends.device.idle(stream))


def a_communicator_to_a_dead_peer_is_revoked(ends: Ends) -> None:
    comm = ends.joined()
    if ends.rank == 1:
        ends.hear("parked")
        os.kill(os.getpid(), signal.SIGKILL)
    stream, _ = ends.parked(comm)
    ends.tell("parked")
    time.sleep(0.3)
    comm.revoke()
    until(comm.quiet)
    assert comm.end(10.0)
    until(lambda: ends.device.idle(stream))


def registered_memory_carries_and_is_taken_back(ends: Ends) -> None:
    if not ends.library.capabilities.has("mem_alloc"):
        return
    comm, stream, size = ends.joined(), ends.device.stream(), 1 << 21
    address = ends.library.mem_alloc(size)
    ends.device.clear(address, size)
    comm.register(address, size)
    if ends.rank == 0:
        ends.device.poke(address + size - 8, 77)
    (comm.send if ends.rank == 0 else comm.receive)(
        1 - ends.rank, words([address]), words([size]), stream.handle
    )
    until(lambda: ends.device.idle(stream))
    assert ends.device.peek(address + size - 8) == 77
    ends.tell("carried")
    ends.hear("carried")
    comm.revoke()
    until(comm.quiet)
    assert comm.end(10.0)
    assert ends.library.mem_free(address) == Result.SUCCESS


ALIVE = [
    registered_memory_carries_and_is_taken_back,
    messages_arrive_in_order,
    messages_arrive_in_order_blocking,
    in_progress_until_all_have_joined,
    a_join_that_nobody_answers_can_be_aborted,
    revoke_ends_work_and_leaves_nothing_but_destroy,
    a_revoked_communicator_shrinks,
    abort_ends_parked_work,
    a_live_graph_holds_the_abort_until_it_is_destroyed,
]
DEADLY = [the_death_of_a_peer_shows_in_nothing, a_communicator_to_a_dead_peer_is_revoked]
CASES = {case.__name__: case for case in [*ALIVE, *DEADLY]}


def make(library: str, rank: int):
    """The library and the device of one rank."""
    if library == "fake":
        from ftrt.transport.nccl.fake import FakeNccl
        from ftrt.transport.nccl.fake_device import FakeDevice

        return FakeNccl(), FakeDevice(rank)
    from ftrt.transport.nccl.cuda import CudaDevice
    from ftrt.transport.nccl.lib import Nccl
    from ftrt.transport.nccl.placement import share

    index = share(rank) if os.environ.get("FTRT_SHARE_GPU") == "1" else rank
    return Nccl(), CudaDevice(index)


def main() -> None:
    name, rank, directory, *cases = sys.argv[1:]
    library, device = make(name, int(rank))
    for case in cases:
        ends = Ends(library, device, int(rank), Path(directory), case)
        result = ""
        try:
            CASES[case](ends)
        except BaseException:
            result = traceback.format_exc()
        with open(Path(directory) / f"results-{rank}", "a") as out:
            out.write(json.dumps([case, result]) + "\n")
        ends.tell("done")
        if rank == "0" and case in {c.__name__ for c in DEADLY}:
            continue
        ends.hear("done")
    sys.stdout.flush()
    os._exit(0)


def run(library: str, directory: Path, cases: list[str], limit_s: float, env=None) -> dict:
    """Both ranks in processes of their own; the results of each, by case."""
    import subprocess

    root = Path(__file__).parents[2]
    logs = [open(directory / f"log-{rank}", "w") for rank in (0, 1)]  # noqa: SIM115
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, library, str(rank), str(directory), *cases],
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
            | (env or {}),
        )
        for rank in (0, 1)
    ]
    deadline = time.monotonic() + limit_s
    try:
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for log in logs:
            log.close()
    found: dict = {}
    for rank in (0, 1):
        path = directory / f"results-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        for case, result in map(json.loads, lines):
            found.setdefault(case, {})[rank] = result
    return found


def verdict(found: dict, case: str, ranks: tuple[int, ...], directory: Path) -> None:
    """Fail a test with what the ranks said."""
    for rank in ranks:
        result = found.get(case, {}).get(rank)
        if result != "":
            log = (directory / f"log-{rank}").read_text()[-3000:]
            raise AssertionError(f"{case}, rank {rank}: {result or 'no result'}\n{log}")


if __name__ == "__main__":
    main()
