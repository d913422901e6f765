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
from ftrt.transport.nccl.codes import Action, Result, describe, meaning

_POLL_S = 0.0002
#: How long a call that is under way may take to return before an abort that it may wait for.
_LEAVE_S = 0.05


class GpuFailed(PeerFailed):
    """A CUDA call failed inside the library: the communicator is lost, and the GPU perhaps too."""


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
    enter : callable
        Makes its GPU the current one of a thread that is made here.

    Notes
    -----
    Its end frees what the handle points to, so no other thread may be inside the library with it
    then: calls are counted, and none begins once :meth:`end` or :meth:`revoke` was called.
    """

    def __init__(
        self,
        library: Any,
        name: str,
        blocking: bool = False,
        enter: Callable[[], object] = lambda: None,
    ) -> None:
        if blocking and library.capabilities.always_nonblocking:
            blocking = False
        self.library, self.name, self.blocking = library, name, blocking
        self.state = State.INIT
        self.handle: Any = None
        self._enter_device = enter
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._ending = False
        self._joining = False
        self._inside = 0
        self._registered: list[tuple[bool, Any]] = []
        self._since_s = time.monotonic()

    @property
    def is_ending(self) -> bool:
        """Whether its end was asked for: a call that fails now fails because of that."""
        return self._ending

    @property
    def occupied(self) -> bool:
        """Whether a thread is inside a call."""
        return self._inside > 0

    def _begin(self, *states: State) -> None:
        """Before a call: in these states, and not while it is being ended."""
        with self._lock:
            if self._ending:
                raise PeerFailed(f"{self.name} is {self.state.value}, its end was asked for")
            self._must_be(*states)
            self._inside += 1

    def _done(self) -> None:
        with self._lock:
            self._inside -= 1

    def _move(self, event: Event) -> None:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise InvariantBroken(f"{self.name}: {event.value} while {self.state.value}")
        self.state, self._since_s = following, time.monotonic()

    def _must_be(self, *states: State) -> None:
        if self.state not in states:
            wanted = " or ".join(state.value for state in states)
            raise UsageError(f"{self.name} is {self.state.value}, not {wanted}")

    # -- coming into being -------------------------------------------------------------------

    def join(self, ranks: int, unique_id: bytes, rank: int) -> None:
        """Begin to join. A blocking communicator is in progress until this has returned."""
        with self._lock:
            self._must_be(State.INIT)
            self._move(Event.JOIN)
            self._joining = True
        handle = None
        try:
            code, handle = self.library.init(ranks, unique_id, rank, self.blocking)
        finally:
            with self._lock:
                self._joining = False
                late = self.state is not State.IN_PROGRESS
                if not late:
                    self.handle = handle
        if late:  # it was left behind while nobody could end it
            if handle:
                self.library.abort(handle)
            raise PeerFailed(f"{self.name} was given up before all had joined")
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
        self._begin(State.IN_PROGRESS)
        try:
            if self._async_state() == Result.IN_PROGRESS:
                self._in_time("to be ready")
                return False
            with self._lock:
                if not self._ending:
                    self._move(Event.SETTLED)
            return self.state is State.READY
        finally:
            self._done()

    # -- work ----------------------------------------------------------------------------------

    def send(self, peer: int, addresses, sizes, stream: int) -> None:
        """Post one group of sends."""
        self._begin(State.READY)
        try:
            self._check(self.library.send(self.handle, peer, addresses, sizes, stream))
        finally:
            self._done()

    def receive(self, peer: int, addresses, sizes, stream: int) -> None:
        """Post one group of receives."""
        self._begin(State.READY)
        try:
            self._check(self.library.receive(self.handle, peer, addresses, sizes, stream))
        finally:
            self._done()

    def check(self) -> None:
        """Look for an asynchronous error; one that comes is :class:`PeerFailed`."""
        if self.state is not State.READY or self._ending:
            return
        self._begin(State.READY)
        try:
            self._async_state()
        finally:
            self._done()

    def register(self, address: int, size: int, window: bool = False) -> bool:
        """Register memory that the library allocated, once for as long as this lives.

        A window is made by all ranks together and of one size: it waits for the others.

        Returns
        -------
        bool
            False if the library refused: the memory works all the same, by one more copy.
        """
        make = self.library.register_window if window else self.library.register
        self._begin(State.READY)
        try:
            with self._asking:  # making a window asks, too
                code, handle = make(self.handle, address, size)
            if code == Result.IN_PROGRESS:
                self._settle_call()
                code = Result.SUCCESS
            if code:
                return False
            if handle:  # none where the library has nothing to gain from it
                self._registered.append((window, handle))
            return bool(handle)
        finally:
            self._done()

    def _deregister(self) -> None:
        registered, self._registered = self._registered, []
        for window, handle in reversed(registered):
            undo = self.library.deregister_window if window else self.library.deregister
            undo(self.handle, handle)

    def _ask(self) -> tuple[int, int]:
        """The code and the asynchronous state; in progress while another thread asks.

        Who asks also ends the group that was in progress and frees it: two at a time free it
        twice.
        """
        if not self._asking.acquire(blocking=False):
            return Result.SUCCESS, Result.IN_PROGRESS
        try:
            return self.library.async_error(self.handle)
        finally:
            self._asking.release()

    def _async_state(self) -> int:
        code, state = self._ask()
        self._check(code)
        self._check(state)
        return state

    def _check(self, code: int) -> None:
        """Do about a code what the table of codes says."""
        action = meaning(code).action
        if action is Action.GO_ON:
            return
        if action is Action.POLL:
            if self.state is State.READY:
                self._settle_call()
            return
        if action is Action.RAISE and not self._ending:
            raise InvariantBroken(f"{self.name}, {self.state.value}: {describe(code)}")
        kind = GpuFailed if action is Action.END_PROCESS else PeerFailed
        raise kind(f"{self.name}, {self.state.value}: {describe(code)}")

    def _settle_call(self) -> None:
        """Poll until a call on a non-blocking communicator has passed."""
        deadline_s = time.monotonic() + DEADLINES_S[State.IN_PROGRESS]
        while True:
            code, state = self._ask()
            if code or state != Result.IN_PROGRESS:
                self._check(code or state)
                return
            if self._ending:
                raise PeerFailed(f"{self.name}: its end was asked for while a call was in progress")
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(f"{self.name}: a call stays in progress")

    def _in_time(self, what: str) -> None:
        limit_s = DEADLINES_S[self.state]
        if time.monotonic() - self._since_s > limit_s:
            raise DeadlineExceeded(f"{self.name}: {limit_s:g} s were not enough {what}")

    # -- the end -------------------------------------------------------------------------------

    def revoke(self) -> None:
        """End the work in flight; :meth:`quiet` says when it has ended."""
        with self._lock:
            self._must_be(State.READY)
            self._ending = True
        code = self.library.revoke(self.handle)
        if code not in (Result.SUCCESS, Result.IN_PROGRESS):
            raise PeerFailed(f"{self.name}: revoke: {describe(code)}")
        self._move(Event.REVOKE)

    def quiet(self) -> bool:
        """Whether a revoked communicator has no work left."""
        self._must_be(State.REVOKED)
        code, state = self._ask()
        return not code and state != Result.IN_PROGRESS

    def end(self, deadline_s: float | None = None) -> bool:
        """End it whatever state it is in: revoke and destroy where that is the path, else abort.

        Waits until it has ended, at most ``deadline_s`` (of :data:`DEADLINES_S` by default); then
        it is left behind with the thread that hangs in it.

        Returns
        -------
        bool
            False if it was left behind.
        """
        with self._lock:
            self._ending = True
            if self.state in (State.GONE, State.LEFT_BEHIND):
                return self.state is State.GONE
            if self.state is State.INIT:
                self.state = State.GONE
                return True
        limit_s = DEADLINES_S[State.ABORTING] if deadline_s is None else deadline_s
        expires_s = time.monotonic() + limit_s
        if self.state is State.REVOKED:
            # Destroy frees without waiting: for the work first, and for threads in a call.
            if not _until(lambda: not self.occupied and self.quiet(), expires_s):
                return self._left_behind()
            last = self.library.destroy
        else:
            # Of a join that does not return nobody has the handle. An abort brings back whoever
            # waits inside a call, so that it does not wait for them.
            if not _until(lambda: not self._joining, expires_s):
                return self._left_behind()
            patience_s = min(expires_s, time.monotonic() + _LEAVE_S)
            _until(lambda: not self.occupied, patience_s)
            last = self.library.abort
        with self._lock:
            if self.state in (State.GONE, State.LEFT_BEHIND):
                return self.state is State.GONE
            destroys = self.state is State.REVOKED
            self._move(Event.ABORT)
        if not self.handle:
            return self._over()

        def work() -> None:
            if destroys:  # an abort gives registrations up by itself, with work in flight
                self._deregister()
            last(self.handle)

        return self._in_thread(work, expires_s)

    def finish(self, deadline_s: float | None = None) -> bool:
        """A clean end: finalize, poll, destroy; abort where that does not come in time."""
        with self._lock:
            self._must_be(State.READY)
            self._ending = True
            self._move(Event.FINALIZE)
        limit_s = DEADLINES_S[State.ABORTING] if deadline_s is None else deadline_s
        expires_s = time.monotonic() + limit_s

        def work() -> None:
            code: int = self.library.finalize(self.handle)
            state: int = Result.IN_PROGRESS
            while code in (Result.SUCCESS, Result.IN_PROGRESS):
                code, state = self._ask()
                if code or state != Result.IN_PROGRESS:
                    break
                if time.monotonic() > expires_s - limit_s / 2:
                    break
                time.sleep(_POLL_S)
            if code or state:  # a destroy would wait for the others, without a limit
                self.library.abort(self.handle)
                return
            self._deregister()
            self.library.destroy(self.handle)

        return self._in_thread(work, expires_s)

    def _in_thread(self, work: Callable[[], object], expires_s: float) -> bool:
        """Carry out what may never come back."""

        def there() -> None:
            self._enter_device()
            work()

        thread = threading.Thread(target=there, daemon=True, name=f"end of {self.name}")
        thread.start()
        thread.join(max(0.0, expires_s - time.monotonic()))
        if thread.is_alive():
            return self._left_behind()
        return self._over()

    def _left_behind(self) -> bool:
        with self._lock:
            self._move(Event.EXPIRED)
        return False

    def _over(self) -> bool:
        self._move(Event.ENDED)
        self.handle = None
        return True


def _until(ready: Callable[[], bool], expires_s: float) -> bool:
    """Poll until something is so; False if it is not by then."""
    while not ready():
        if time.monotonic() > expires_s:
            return False
        time.sleep(_POLL_S)
    return True
