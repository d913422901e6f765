"""The one module that talks to MPI communicators (mpi4py).

MPI starts the processes, numbers them, and carries the application's own collectives on
``rt.comm``. What ftrt decides it decides beside MPI (see ``ftrt.host``): after a death nothing here
is waited for without a deadline, and no error class is trusted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from ftrt.errors import PeerFailed, UsageError

_TAGS_GUARANTEED = 32767
_TAGS = _TAGS_GUARANTEED + 1


class World:
    """``MPI_COMM_WORLD`` of this attempt, errors returned instead of fatal.

    With ``data_over_mpi`` every process joins a communicator for the data as well (collective);
    with ``several_hosts`` MPI takes shared memory where it can, which nothing else does then.
    """

    def __init__(self, data_over_mpi: bool = False, several_hosts: bool = False) -> None:
        # Shared memory is off for MPI's own transport as well, unless somebody chose one. Otherwise
        # all but ofi, which carries nothing under ob1 and takes a second to find that out.
        alone = os.environ.get("FTRT_SHM") == "0"
        over_tcp = data_over_mpi or alone
        inside = "self,sm,tcp" if several_hosts and not alone else "self,tcp"
        os.environ.setdefault("OMPI_MCA_btl", inside if over_tcp else "^ofi")
        import mpi4py

        mpi4py.rc.finalize = False  # MPI_Finalize hangs after a failure: processes leave without it
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank = self.comm.rank
        self.size = self.comm.size
        self.wire = Wire(MPI, self.comm) if data_over_mpi else None
        if MPI.get_vendor()[0] == "MPICH":
            self._drop_names()

    def _drop_names(self) -> None:
        """Take the names off MPICH's shared memory, which ``MPI_Finalize`` would do: we leave
        without it, and nobody does after a SIGKILL. All of the host have it mapped by now."""
        self.comm.Barrier()
        with open("/proc/self/maps") as maps:
            mapped = {line.split()[-1] for line in maps if " /dev/shm/mpich_" in line}
        for path in mapped:
            with contextlib.suppress(OSError):  # another process was first
                os.unlink(path)

    def finalize(self) -> None:
        """``MPI_Finalize``, for an MPI whose mpirun ends everybody when somebody leaves without.

        There nobody has died by now: a death would have ended us all.
        """
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def processes_on_this_host(self) -> int:
        """How many processes of the job share memory with this one."""
        local = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        size = local.size
        local.Free()
        return size

    def member_comm(self, processes: list[int], epoch: int, survivors=None):
        """Communicator of ``processes`` (world ranks, in logical order); collective over them.

        When this returns every one of them has it. After a death in the world it is made from
        ``survivors``, which :meth:`shrink` gave; from the world itself it fails or hangs then.
        """
        parent = self.comm if survivors is None else survivors
        comm = parent.Create_group(self.comm.Get_group().Incl(processes), tag=epoch % _TAGS)
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        comm.Barrier()
        return _watched_class(self._mpi)(comm)

    def shrink(self):
        """Communicator of the living processes; collective over all of them."""
        comm = self.comm.Shrink()
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        return comm

    def revoke(self, comm) -> None:
        """End all calls on ``comm``, at all of its members; each of them must have it by now."""
        with contextlib.suppress(self._mpi.Exception, NotImplementedError):  # an MPI without ULFM
            comm.Revoke()


#: Calls under way on communicators of the application: thread to communicator, name, beginning.
_calls: dict[int, tuple[Any, str, float]] = {}


@functools.cache
def _watched_class(mpi: Any) -> Any:
    """A communicator of which it is known what call each thread is in; so are those made from it.

    Open MPI 5.0 revokes a communicator and may yet leave a large message under way for ever, with
    a peer that has left the call: whoever waits for it cannot be helped, only be found.
    """

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def method(self: Any, *args: Any, **named: Any) -> Any:
            thread = threading.get_ident()
            _calls[thread] = self, name, time.monotonic()
            try:
                return call(self, *args, **named)
            finally:
                _calls.pop(thread, None)

        return method

    quick = ("_", "Get_", "Set_", "Is_", "Create_errhandler", "Create_keyval", "Free", "Revoke")
    calls = {
        name: watched(name, getattr(mpi.Intracomm, name))
        for name in dir(mpi.Intracomm)
        if not name.startswith(quick)
        and inspect.isroutine(inspect.getattr_static(mpi.Intracomm, name))
        and not isinstance(inspect.getattr_static(mpi.Intracomm, name), (classmethod, staticmethod))
    }
    return type("Intracomm", (mpi.Intracomm,), calls)


def call_under_way(comms: Iterable[Any], since_s: float) -> str:
    """Name of a call on one of ``comms`` that began before ``since_s`` and has not ended yet."""
    for comm, name, began_s in list(_calls.values()):
        if began_s < since_s and any(comm is one for one in comms):
            return name
    return ""


class Wire:
    """Messages between processes on a communicator of ftrt's own. No call blocks.

    A request to a process that died ends with an error sooner or later, of whatever class; all of
    them are told as :class:`PeerFailed`, and who died is for the epochs to say. The communicator
    is never revoked, so that messages between living processes go on.

    No message is started with a process that ``lives`` says is dead. Open MPI 5.0 forgets how to
    reach a process when its connection ends, and some time later that it must not try: a send in
    between reads through a null pointer (``mca_pml_ob1_isend``). Where ``lives`` is false before
    the connection can end, as :meth:`ftrt.host.board.Board.lives` is, there is no such send. Until
    it is set everybody is taken to live.
    """

    def __init__(self, mpi: Any, world: Any) -> None:
        self._error = mpi.Exception
        self._comm = world.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._isend, self._irecv = self._comm.Isend, self._comm.Irecv
        self._status, self._anybody = mpi.Status(), mpi.ANY_SOURCE
        self._given: deque[tuple[Any, bytes]] = deque()
        self._retired: list[tuple[list, Any]] = []
        self.lives: Callable[[int], bool] = lambda process: True
        self.process: int = self._comm.rank
        self.tag_limit: int = self._comm.Get_attr(mpi.TAG_UB) or _TAGS_GUARANTEED

    def send(self, buffer: np.ndarray | bytes, process: int, tag: int) -> Any:
        """Start a send; ``buffer`` stays as it is until the request is done."""
        if not self.lives(process):
            raise self._failed(process, "it is dead")
        try:
            return self._isend(buffer, process, tag)
        except self._error as error:
            raise self._failed(process, error) from error

    def receive(self, buffer: np.ndarray, process: int, tag: int) -> Any:
        """Post a receive of at most ``buffer``'s bytes.

        From a dead process it fails when it is asked for, so that what came before is taken first.
        """
        if not self.lives(process):
            return _Refused(self._failed(process, "it is dead"))
        try:
            return self._irecv(buffer, process, tag)
        except self._error as error:
            raise self._failed(process, error) from error

    def done(self, request: Any) -> bool:
        """Whether a request is complete."""
        try:
            return request.Test()
        except self._error as error:
            raise PeerFailed(f"a message of process {self.process} failed: {error}") from error

    def fetch(self, buffer: np.ndarray, process: int, tag: int) -> bool:
        """Take a message that has arrived and that nobody posted a receive for."""
        if not self.lives(process):
            return False
        try:
            message = self._comm.Improbe(process, tag)
            if message is None:
                return False
            message.Recv(buffer)
        except self._error:
            return False
        return True

    def give(self, data: bytes, process: int, tag: int) -> None:
        """Send bytes; they are kept until MPI is done with them."""
        given = self._given
        given.append((self.send(data, process, tag), data))
        while given and self._over(given[0][0]):
            given.popleft()

    def take(self, process: int | None, tag: int, looks: int = 1) -> tuple[int, bytes] | None:
        """Take a message that :meth:`give` sent, and from whom; None if ``looks`` find none.

        From anybody where no ``process`` is named, which MPI refuses once somebody died.
        """
        probe, status = self._comm.Improbe, self._status
        source = self._anybody if process is None else process
        if process is not None and not self.lives(process):
            return None
        try:
            for _ in range(looks):
                message = probe(source, tag, status)
                if message is not None:
                    data = bytearray(status.Get_count())
                    message.Recv(data)
                    return status.source, bytes(data)
        except self._error:
            pass
        return None

    def retire(self, receives: list, sends: list, memory: Any) -> None:
        """Give up requests; ``memory`` is kept until none of them can touch it any more."""
        for request in receives:
            try:
                request.Cancel()
            except self._error:
                continue  # it has failed, or is complete
        self._retired.append(([*receives, *sends], memory))
        self._retired = [entry for entry in self._retired if not self._all_over(entry[0])]

    def _all_over(self, requests: list) -> bool:
        return all(self._over(request) for request in requests)

    def _over(self, request: Any) -> bool:
        try:
            return request.Test()
        except (self._error, PeerFailed):
            return True

    def _failed(self, process: int, error: object) -> PeerFailed:
        return PeerFailed(f"process {self.process} cannot reach process {process}: {error}")


class _Refused:
    """A receive that was not posted, with the calls of a request that :class:`Wire` makes."""

    def __init__(self, failure: PeerFailed) -> None:
        self._failure = failure

    def Test(self) -> bool:
        raise self._failure

    def Cancel(self) -> None:
        """There is nothing to cancel."""


def world_rank_of_environment(environment: Mapping[str, str] = os.environ) -> int | None:
    """Rank in the world before MPI is initialised, None where the launcher does not tell."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        value = environment.get(name)
        if value is not None and value.isdigit():
            return int(value)
    return None


def ulfm_is_on(environment: Mapping[str, str]) -> bool:
    """True in a process that ``mpirun --with-ft ulfm`` of Open MPI 5 or later started."""
    return environment.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "enabled")


def connect(expected: int, data_over_mpi: bool = False, several_hosts: bool = False) -> World:
    """Initialise MPI and check that it is the world the launcher meant."""
    world = World(data_over_mpi, several_hosts)
    if world.size != expected:
        raise UsageError(
            f"MPI started {world.size} processes, {expected} were expected: "
            "start the program with `ftrt run`, whose mpirun belongs to the mpi4py of "
            f"{sys.executable}"
        )
    return world


def leave(status: int) -> NoReturn:
    """End this process without ``MPI_Finalize``, everything printed."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more: no reason to stay
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
