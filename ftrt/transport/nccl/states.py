"""The life cycle of a communicator: which call is allowed in which state, and until when it may
take. Every call on a communicator goes through :class:`Communicator`, which raises before the
library would refuse, or hang.

==================== ====================================================================
state                meaning
==================== ====================================================================
init                 nobody has joined yet
in progress          the library works in the background: nothing but polling and abort
ready                work may be posted
revoked              work has ended; a parent for shrink, then to be destroyed
aborting             its end was asked for
gone                 it has ended, all its resources are given back
left behind          its end did not come by the deadline; nothing touches it any more
==================== ====================================================================
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Any

from ftrt.errors import DeadlineExceeded, InvariantBroken, PeerFailed, UsageError
from ftrt.transport.nccl.codes import Result, Severity, describe, meaning

_POLL_S = 0.0002


class State(enum.Enum):
    """Where a communicator is in its life."""

    INIT = "init"
    IN_PROGRESS = "in progress"
    READY = "ready"
    REVOKED = "revoked"
    ABORTING = "aborting"
    GONE = "gone"
    LEFT_BEHIND = "left behind"


class Event(enum.Enum):
    """What moves it on."""

    JOIN = "join"
    SETTLED = "settled"
    REVOKE = "revoke"
    QUIET = "quiet"
    FINALIZE = "finalize"
    ABORT = "abort"
    ENDED = "ended"
    EXPIRED = "expired"


#: (state, event) -> state; whatever is not here raises and changes nothing.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.INIT, Event.JOIN): State.IN_PROGRESS,
    (State.IN_PROGRESS, Event.SETTLED): State.READY,
    (State.IN_PROGRESS, Event.ABORT): State.ABORTING,
    (State.IN_PROGRESS, Event.EXPIRED): State.LEFT_BEHIND,
    (State.READY, Event.REVOKE): State.REVOKED,
    (State.READY, Event.FINALIZE): State.ABORTING,
    (State.READY, Event.ABORT): State.ABORTING,
    (State.REVOKED, Event.QUIET): State.REVOKED,
    (State.REVOKED, Event.ABORT): State.ABORTING,
    (State.REVOKED, Event.EXPIRED): State.LEFT_BEHIND,
    (State.ABORTING, Event.ENDED): State.GONE,
    (State.ABORTING, Event.EXPIRED): State.LEFT_BEHIND,
}

#: How long each state may last, in seconds.
DEADLINES_S: dict[State, float] = {
    State.IN_PROGRESS: 20.0,
    State.REVOKED: 5.0,
    State.ABORTING: 5.0,
}


class Communicator:
    """One rank's end of a communicator, in exactly one state.

    Parameters
    ----------
    library : Library
        What carries the calls out.
    name : str
        For errors and events.
    blocking : bool
        Whether calls wait inside the library.
    """

    def __init__(self, library: Any, name: str, blocking: bool = False) -> None:
        if blocking and library.capabilities.always_nonblocking:
            blocking = False
        self.library, self.name, self.blocking = library, name, blocking
        self.state = State.INIT
        self._ending = False  # set before another thread can see what its end does to a call
        self.handle: Any = None
        self._since_s = time.monotonic()

    def _move(self, event: Event) -> None:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise InvariantBroken(f"{self.name}: {event.value} while {self.state.value}")
        self.state, self._since_s = following, time.monotonic()

    def _must_be(self, *states: State) -> None:
        if self.state not in states:
            wanted = " or ".join(state.value for state in states)
            raise UsageError(f"{self.name} is {self.state.value}, not {wanted}")

    def _must_work(self) -> None:
        """For work: a communicator whose end another thread has begun is a failed one."""
        if self.state in (State.INIT, State.IN_PROGRESS):
            self._must_be(State.READY)
        if self.state is not State.READY:
            raise PeerFailed(f"{self.name} is {self.state.value}")

    # -- coming into being -------------------------------------------------------------------

    def join(self, ranks: int, unique_id: bytes, rank: int) -> None:
        """Begin to join. A blocking communicator is in progress until this has returned."""
        self._must_be(State.INIT)
        self._move(Event.JOIN)
        code, self.handle = self.library.init(ranks, unique_id, rank, self.blocking)
        self._check(code)

    def settled(self) -> bool:
        """Whether it is ready; False while it is in progress.

        Raises
        ------
        PeerFailed
            It never will be.
        DeadlineExceeded
            Its deadline has passed: abort it.
        """
        if self.state is not State.IN_PROGRESS:
            return self.state is State.READY
        if self._async_state() == Result.IN_PROGRESS:
            self._in_time("to be ready")
            return False
        self._move(Event.SETTLED)
        return True

    # -- work ----------------------------------------------------------------------------------

    def send(self, peer: int, addresses, sizes, stream: int) -> None:
        """Post one group of sends."""
        self._must_work()
        self._check(self.library.send(self.handle, peer, addresses, sizes, stream))

    def receive(self, peer: int, addresses, sizes, stream: int) -> None:
        """Post one group of receives."""
        self._must_work()
        self._check(self.library.receive(self.handle, peer, addresses, sizes, stream))

    def check(self) -> None:
        """Look for an asynchronous error; one that comes is :class:`PeerFailed`."""
        if self.state is State.READY:
            self._async_state()

    def _async_state(self) -> int:
        code, state = self.library.async_error(self.handle)
        self._check(code)
        self._check(state)
        return state

    def _check(self, code: int) -> None:
        severity = meaning(code).severity
        if severity in (Severity.NONE, Severity.PENDING):
            if code == Result.IN_PROGRESS and self.state is State.READY:
                self._settle_call()
            return
        if severity is Severity.CALL and not self._ending:
            raise InvariantBroken(f"{self.name}, {self.state.value}: {describe(code)}")
        raise PeerFailed(f"{self.name}, {self.state.value}: {describe(code)}")

    def _settle_call(self) -> None:
        """Poll until a call on a non-blocking communicator has passed."""
        deadline_s = time.monotonic() + DEADLINES_S[State.IN_PROGRESS]
        while True:
            code, state = self.library.async_error(self.handle)
            if code or state != Result.IN_PROGRESS:
                self._check(code or state)
                return
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(f"{self.name}: a call stays in progress")

    def _in_time(self, what: str) -> None:
        limit_s = DEADLINES_S[self.state]
        if time.monotonic() - self._since_s > limit_s:
            raise DeadlineExceeded(f"{self.name}: {limit_s:g} s were not enough {what}")

    # -- the end -------------------------------------------------------------------------------

    def revoke(self) -> None:
        """End the work in flight; :meth:`quiet` says when it has ended."""
        self._must_be(State.READY)
        self._ending = True
        code = self.library.revoke(self.handle)
        if code not in (Result.SUCCESS, Result.IN_PROGRESS):
            raise PeerFailed(f"{self.name}: revoke: {describe(code)}")
        self._move(Event.REVOKE)

    def quiet(self) -> bool:
        """Whether a revoked communicator has no work left."""
        self._must_be(State.REVOKED)
        _, state = self.library.async_error(self.handle)
        return state != Result.IN_PROGRESS

    def end(self, deadline_s: float | None = None) -> bool:
        """End it whatever state it is in: revoke and destroy where that is the path, else abort.

        Waits until it has ended, at most ``deadline_s`` (of :data:`DEADLINES_S` by default); then
        it is left behind with the thread that hangs in it.

        Returns
        -------
        bool
            False if it was left behind.
        """
        self._ending = True
        if self.state in (State.GONE, State.LEFT_BEHIND):
            return self.state is State.GONE
        if self.state is State.INIT:
            self.state = State.GONE
            return True
        destroys = self.state is State.REVOKED
        limit_s = DEADLINES_S[State.ABORTING] if deadline_s is None else deadline_s
        expires_s = time.monotonic() + limit_s
        while destroys and not self.quiet():
            if time.monotonic() > expires_s:
                self._move(Event.EXPIRED)
                return False
            time.sleep(_POLL_S)
        self._move(Event.ABORT)
        last = self.library.destroy if destroys else self.library.abort
        if not self.handle:
            return self._over()
        return self._in_thread(lambda: last(self.handle), expires_s)

    def finish(self, deadline_s: float | None = None) -> bool:
        """A clean end: finalize, poll, destroy; abort where that does not come in time."""
        self._must_be(State.READY)
        limit_s = DEADLINES_S[State.ABORTING] if deadline_s is None else deadline_s
        expires_s = time.monotonic() + limit_s
        self._move(Event.FINALIZE)

        def work() -> None:
            code = self.library.finalize(self.handle)
            while code in (Result.SUCCESS, Result.IN_PROGRESS):
                code, state = self.library.async_error(self.handle)
                if code or state != Result.IN_PROGRESS:
                    break
                if time.monotonic() > expires_s - limit_s / 2:
                    self.library.abort(self.handle)
                    return
                time.sleep(_POLL_S)
            self.library.destroy(self.handle)

        return self._in_thread(work, expires_s)

    def _in_thread(self, work: Callable[[], object], expires_s: float) -> bool:
        """Carry out what may never come back."""
        thread = threading.Thread(target=work, daemon=True, name=f"end of {self.name}")
        thread.start()
        thread.join(max(0.0, expires_s - time.monotonic()))
        if thread.is_alive():
            self._move(Event.EXPIRED)
            return False
        return self._over()

    def _over(self) -> bool:
        self._move(Event.ENDED)
        self.handle = None
        return True
