"""The tree over which agents agree: binary, in the order of their numbers, without the dead."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Tree:
    """Who is above and below whom among the agents believed alive; the lowest is on top.

    It never changes; agents with the same view can share one.

    Parameters
    ----------
    agents : tuple of int, sorted
        All agents.
    dead : frozenset of int
        Those that are left out.
    """

    __slots__ = ("_next", "agents", "dead", "live")

    def __init__(self, agents: tuple[int, ...], dead: frozenset[int] = frozenset()) -> None:
        self.agents, self.dead = agents, dead
        self.live = tuple(agent for agent in agents if agent not in dead) if dead else agents
        self._next: dict[int, Tree] = {}

    def turned(self, agent: int) -> Tree:
        """Return the tree with `agent` dead instead of alive, or the other way round."""
        found = self._next.get(agent)
        if found is None:
            found = self._next[agent] = Tree(self.agents, self.dead ^ {agent})
        return found

    def parent(self, agent: int) -> int | None:
        """The next agent up, None for the one on top."""
        at = bisect_left(self.live, agent)
        return self.live[(at - 1) // 2] if at else None

    def children(self, agent: int) -> tuple[int, ...]:
        """The next agents down, two at most."""
        at = bisect_left(self.live, agent)
        return self.live[2 * at + 1 : 2 * at + 3]

    def below(self, agent: int) -> set[int]:
        """All agents below `agent`, and itself."""
        found: set[int] = set()
        first, count = bisect_left(self.live, agent), 1
        while first < len(self.live):  # each level of a subtree lies together
            found.update(self.live[first : first + count])
            first, count = 2 * first + 1, 2 * count
        return found


def runs(agents: Iterable[int]) -> list[tuple[int, int]]:
    """Return a set of agents as closed ranges (first, last): a subtree has few, one a level."""
    found: list[tuple[int, int]] = []
    first = last = -2
    for agent in sorted(agents):
        if agent != last + 1:
            if first >= 0:
                found.append((first, last))
            first = agent
        last = agent
    if first >= 0:
        found.append((first, last))
    return found
