"""Which channel carries a stream between two ranks: the one place that makes them.

A link is a chain of channels, one for each life of the sender (and one more whenever a living
sender gives its channel up). Generations of a chain only grow; a receiver reads them in order.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from ftrt.transport.mpi_plane import link_key
from ftrt.transport.paths import chain, generation_of, ring_path, stream_id
from ftrt.transport.ring import RecvRing, SendRing
from ftrt.transport.ring_admin import flip_bits, seal_sender
from ftrt.transport.ring_heal import SealedRing


class Link(NamedTuple):
    """One stream from one rank to another."""

    directory: Path
    job: str
    stream: str
    source: int
    dest: int
    plane: Any = None  # None where both ranks share memory

    @property
    def key(self) -> int:
        """A number for this link."""
        return link_key(self.job, self.stream, self.source, self.dest)


def make_send(link: Link, generation: int, *, slots: int, slot_bytes: int) -> Any:
    """Make the sender's end of the next channel of a link."""
    if link.plane is not None:
        return link.plane.make_send(link, generation, slots=slots, slot_bytes=slot_bytes)
    return SendRing.create(
        ring_path(link.directory, link.stream, link.source, link.dest, generation),
        slots=slots,
        slot_bytes=slot_bytes,
        job=link.job,
        stream_id=stream_id(link.stream, link.source, link.dest),
        source=link.source,
        dest=link.dest,
        generation=generation,
        epoch=0,
        first_seq=1,
    )


def make_recv(link: Link, after: int) -> tuple[Any, int] | None:
    """Attach to the first channel of a link with a generation above ``after``.

    Returns
    -------
    tuple or None
        The receiver's end and its generation; None while the sender has made no such channel.
    """
    if link.plane is not None:
        return link.plane.make_recv(link, after)
    for path in chain(link.directory, link.stream, link.source, link.dest):
        generation = generation_of(path)
        if generation > after:
            with contextlib.suppress(FileNotFoundError):  # read to its end, and just removed
                return RecvRing.attach(path), generation
    return None


def earlier_channels(link: Link, before: int) -> list[SealedRing]:
    """Channels of a link with a generation below ``before`` that its receiver may still read.

    A channel of messages ends with its sender: of those there are none.
    """
    if link.plane is not None:
        return []
    rings = chain(link.directory, link.stream, link.source, link.dest)
    found = []
    for path in rings:
        if generation_of(path) < before:
            with contextlib.suppress(FileNotFoundError):  # read to its end, and just removed
                found.append(SealedRing(path))
    return [ring for ring in found if ring.is_read_on]


def give_up(channel: Any) -> int:
    """Seal the sender's end of a channel; the first number that it does not hold complete."""
    if not isinstance(channel, SendRing):
        return channel.give_up()
    return seal_sender(channel.path)["next_seq"]


def damage(channel: Any) -> None:
    """Fault injection: flip bits in the next frame that the receiver's end would read.

    Raises
    ------
    UsageError
        There is none yet.
    """
    if not isinstance(channel, RecvRing):
        channel.damage(channel.next_frame)
        return
    flip_bits(channel.path, channel.next_frame)


def is_stale(link: Link, channel: Any) -> bool:
    """Whether the other end of a channel was replaced, and what it had is lost with it.

    A ring outlives both ends, and its successor goes on with it.
    """
    if link.plane is None:
        return False
    other = link.dest if hasattr(channel, "try_send") else link.source
    return link.plane.is_stale(channel, other)
