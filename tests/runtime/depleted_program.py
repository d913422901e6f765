"""Says on each rank when it learns that no spare is left, and what it reads before and after."""

import sys
import time

import numpy as np

import ftrt


def main():
    with ftrt.init() as rt:
        told = []
        at_first = rt.spares_left
        rt.on_depleted(lambda rt: told.append(rt.spares_left))
        if rt.rank == 0:
            with rt.sender("numbers", to=1, replay=lambda seq: np.full(4, seq)) as out:
                while out.next_seq <= 100 or not told:
                    out.send(np.full(4, out.next_seq))
                    time.sleep(0.002)
        else:
            for message in rt.receiver("numbers", source=0):
                with message.consume():
                    pass
        print(f"rank {rt.rank} began with {at_first}, told {told}, now {rt.spares_left}")
        sys.stdout.flush()


main()
