"""A tiny stand-in for the runtime: ranks are threads, streams are lists, and all of it survives.

`Cluster.run` runs one function for each rank. At every send and every commit a rank passes steps;
`die` names the steps at which it is to die. A dead rank is started again as RECOVERED at once,
with the state that its commits left behind.
"""

import threading
from collections import defaultdict

import numpy as np


class Killed(BaseException):
    """Ends a rank as a death would: no handler of the application may see it."""


class Cluster:
    """The memory that outlives ranks, and the way to run them.

    Parameters
    ----------
    size : int
        Number of ranks.
    die : set of (int, int), optional
        The (rank, step) at which a rank dies; its steps count on over all its incarnations.
    """

    def __init__(self, size, die=()):
        self.size = size
        self.die = set(die)
        self.changed = threading.Condition()
        self.messages = defaultdict(list)  # (stream, source): arrays
        self.closed = set()  # (stream, source)
        self.consumed = defaultdict(int)  # (stream, source, rank): count
        self.states = defaultdict(dict)  # rank: effects
        self.steps = defaultdict(int)
        self.deaths = 0
        self.failed = []

    def run(self, function, timeout_s=60):
        """Run ``function(rt)`` on every rank to its end."""
        args = [(function, rank) for rank in range(self.size)]
        threads = [threading.Thread(target=self._live, args=pair, daemon=True) for pair in args]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)
        if self.failed:
            raise self.failed[0]
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError("a rank did not end")

    def runtime(self, rank, role="INITIAL"):
        """Return what `ftrt.init` gives to one rank."""
        return Runtime(self, rank, role)

    def _live(self, function, rank):
        role = "INITIAL"
        while True:
            try:
                return function(self.runtime(rank, role))
            except Killed:
                self.deaths += 1
                role = "RECOVERED"
            except BaseException as error:
                self.failed.append(error)
                return None

    def step(self, rank):
        """Pass one step of a rank, or die at it."""
        self.steps[rank] += 1
        if (rank, self.steps[rank]) in self.die:
            raise Killed


class Runtime:
    """What `ftrt.init` returns, as far as the apps use it."""

    def __init__(self, cluster, rank, role):
        self.cluster, self.rank, self.role, self.size = cluster, rank, role, cluster.size
        self.epoch, self.job = 1, "fake"

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None

    def sender(self, name, to, replay=None, spool=False, volatile=False, **_sizes):
        return Sender(self, name, replay)

    def receiver(self, name, source):
        return Receiver(self, name, source)

    def to_plane(self, array):
        return array

    def to_host(self, array):
        return array

    def progress(self, done, total):
        self.told = done, total

    def restore(self):
        return dict(self.cluster.states[self.rank]) or None


class Sender:
    def __init__(self, rt, name, replay):
        self.rt, self.key, self.replay = rt, (name, rt.rank), replay

    @property
    def next_seq(self):
        return len(self.rt.cluster.messages[self.key]) + 1

    def send(self, array):
        cluster, seq = self.rt.cluster, self.next_seq
        cluster.step(self.rt.rank)
        with cluster.changed:
            cluster.messages[self.key].append(np.array(array))
            cluster.changed.notify_all()
        if self.replay is not None and not np.array_equal(array, self.replay(seq)):
            raise AssertionError(f"the replay of {self.key} {seq} differs")
        cluster.step(self.rt.rank)
        return seq

    def send_batch(self, arrays):
        for array in arrays:
            self.send(array)

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is None:
            with self.rt.cluster.changed:
                self.rt.cluster.closed.add(self.key)
                self.rt.cluster.changed.notify_all()


class Receiver:
    def __init__(self, rt, name, source):
        self.rt, self.key = rt, (name, source)
        self.mark = (name, source, rt.rank)

    @property
    def next_seq(self):
        return self.rt.cluster.consumed[self.mark] + 1

    def __iter__(self):
        return self

    def __next__(self):
        cluster, there = self.rt.cluster, self.rt.cluster.messages[self.key]

        def ready():
            return len(there) >= self.next_seq or self.key in cluster.closed

        with cluster.changed:
            if not cluster.changed.wait_for(ready, timeout=30):
                raise TimeoutError(f"no message {self.next_seq} of {self.key}")
        if len(there) < self.next_seq:
            raise StopIteration
        return Message(self, self.next_seq, there[self.next_seq - 1])

    receive = __next__


class Message:
    def __init__(self, receiver, seq, array):
        self.receiver, self.seq = receiver, seq
        self.stream, self.source = receiver.key
        self.token = (receiver.rt.job, self.stream, self.source, seq)
        self.array = array.view()
        self.array.flags.writeable = False

    def consume(self):
        return Consume(self)


class Consume:
    def __init__(self, message):
        self.receiver = message.receiver

    def __enter__(self):
        self.effect = {}
        return self.effect

    def __exit__(self, error, *_):
        if error is not None:
            return
        rt = self.receiver.rt
        rt.cluster.step(rt.rank)
        copies = {key: np.array(value) for key, value in self.effect.items()}
        rt.cluster.states[rt.rank].update(copies)
        rt.cluster.consumed[self.receiver.mark] += 1
        rt.cluster.step(rt.rank)
