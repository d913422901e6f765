"""One agent of an agreement over real messages: ``agreement_job.py DIR MOMENT WAY``.

At MOMENT agent 0, the coordinator, kills itself: ``never``, ``before`` or ``after`` it makes the
record of the third epoch, or ``first``, before it brought anything to it. ``late`` kills nobody;
agent 3 comes to the third epoch when the others have left the sweep. Marks of the fourth epoch do
not fit a sweep at agent 2. WAY is ``sweep``, or ``tree`` for messages alone.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from ftrt.agree.epoch import EpochId
from ftrt.agree.marks import Marks, StreamMarks
from ftrt.hosts.meeting import Meeting
from ftrt.hosts.register import Register
from ftrt.hosts.sweep import Sweep
from ftrt.mpi import World

LIMIT_S = 20.0


def table_of(agent, agents, number):
    """What an agent's closed ledgers hold: one stream from the agent before, one to the next."""
    gaps = [(10 * number + 2, 10 * number + 2 + agent)]
    if (number, agent) == (4, 2):
        gaps += [(at, at) for at in range(100, 300, 2)]
    consumed = Marks(10 * number, gaps)
    mine = StreamMarks("ring", (agent - 1) % agents, agent, consumed)
    sent = StreamMarks("ring", agent, (agent + 1) % agents, sent=20 * number)
    return {mine.key: mine, sent.key: sent}


class Fatal(Register):
    """A register beside whose third record the process dies."""

    def __init__(self, directory, moment):
        super().__init__(directory)
        self.moment = moment

    def create(self, record):
        if record.epoch.counter == 3 and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = super().create(record)
        if record.epoch.counter == 3 and self.moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def main(directory, moment, way):
    world = World(data_over_mpi=True)
    me, agents = world.comm.rank, world.comm.size
    (directory / f"pid-{me}").write_text(str(os.getpid()))
    world.comm.Barrier()
    pids = [int((directory / f"pid-{agent}").read_text()) for agent in range(agents)]
    sweep = Sweep(world.wire, range(agents), 12, 5)
    for number in range(1, 40):
        sweep.gather(np.full((me + number) % 12, 1000 * me + number, np.uint64), number, LIMIT_S)
        for other in range(agents):
            expected = np.full((other + number) % 12, 1000 * other + number, np.uint64)
            assert (sweep.of(other) == expected).all()
    register = Fatal(directory, moment if me == 0 else "never")

    def dead():
        return [a for a in range(agents) if a != me and not alive(pids[a])]

    def read(agent, epoch):
        full = table_of(agent, agents, epoch.counter)
        return {key: entry for key, entry in full.items() if me in key[1:]}

    own = Sweep(world.wire, range(agents), 40, 7) if way == "sweep" else None
    meeting = Meeting(world.wire, range(agents), 6, register, read, own)
    told, home, members = [], {agent: agent for agent in range(agents)}, range(agents)
    for number in range(2, 8):
        if number == 3 and me == 0 and moment == "first":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 3 and me == 3 and moment == "late":
            time.sleep(0.5)
        marks = table_of(me, agents, number)
        epoch = EpochId("job", 1, number)
        found, table = meeting.agree(epoch, members, marks, home, LIMIT_S, dead)
        members = found.members
        told.append([found.epoch.counter, found.coordinator, found.members, shown(table)])
    until = time.monotonic() + 0.5  # the last record must reach everybody
    while time.monotonic() < until:
        meeting.poll()
    (directory / f"told-{me}.json").write_text(
        json.dumps([told, own is not None and not own.broken])
    )
    os._exit(0)


def shown(table):
    return sorted([*key, entry.marks.to_json(), entry.sent] for key, entry in table.items())


def alive(pid):
    """Whether a process runs; one that nobody waited for yet does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
