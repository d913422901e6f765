"""Which channels of messages a process has, and how both ends agree on their tags.

The sender numbers its channels to each process and offers a channel in a short message: which link
it is for, its generation, its sizes and its first tag. It may send at once; what arrives before
the receiver has accepted the offer waits inside MPI, at most one window of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ftrt.errors import PeerFailed, UsageError
from ftrt.transport import notes
from ftrt.transport.mpi_channel import TAGS, RecvMpi, SendMpi, Wire

OFFER_TAG = 0
_OFFER = 0x4F46_4652


class _Offer(NamedTuple):
    """A channel that a sender has made."""

    process: int
    generation: int
    slots: int
    slot_bytes: int
    tag: int


def link_key(job: str, stream: str, source: int, dest: int) -> int:
    """63 bits that stand for a link of a job."""
    name = f"{job}\0{stream}\0{source}\0{dest}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


class MpiPlane:
    """The channels of this process over one wire.

    Parameters
    ----------
    wire : ftrt.mpi.Wire
        Carries the messages.
    process_of : callable
        Process that holds a rank in the epoch that this process is in, None if unknown.
    """

    def __init__(self, wire: Any, process_of: Callable[[int], int | None]) -> None:
        self._wire: Wire = wire
        self._tag_limit: int = wire.tag_limit
        self._process_of = process_of
        self._next_tag: dict[int, int] = {}
        self._offers: dict[int, list[_Offer]] = {}
        self._sending: dict[int, SendMpi] = {}
        self._receiving: dict[int, RecvMpi] = {}
        self._note = notes.blank()

    def make_send(self, link: Any, generation: int, *, slots: int, slot_bytes: int) -> SendMpi:
        """Make a sender's end to the process that holds the destination, and offer it there."""
        key, dest = link.key, link.dest
        peer = self._process_of(dest)
        if peer is None:
            raise UsageError(f"no process holds rank {dest}")
        if key in self._sending:
            self._sending.pop(key).retire()
        tag = self._tags_for(peer)
        channel = SendMpi(
            self._wire,
            peer,
            tag,
            slots=slots,
            slot_bytes=slot_bytes,
            stream_id=key,
            generation=generation,
        )
        self._sending[key] = channel
        note = notes.blank()
        notes.write(note, _OFFER, key, generation, slots, channel.slot_bytes, tag)
        try:
            request = self._wire.send(note, peer, OFFER_TAG)
        except PeerFailed as failure:
            channel.broken = failure  # the next epoch says who holds the rank then
        else:
            self._wire.retire([], [request], note)
        return channel

    def make_recv(self, link: Any, after: int) -> tuple[RecvMpi, int] | None:
        """Accept the newest channel of a link, if it is newer than generation ``after``."""
        key, source = link.key, link.source
        peer = self._process_of(source)
        if peer is None:
            return None
        self._collect(peer)
        offers = [o for o in self._offers.get(key, ()) if o.process == peer]
        newest = max(offers, key=lambda offer: offer.generation, default=None)
        if newest is None or newest.generation <= after:
            return None
        del self._offers[key]
        if key in self._receiving:
            self._receiving.pop(key).retire()
        channel = RecvMpi(
            self._wire,
            peer,
            newest.tag,
            slots=newest.slots,
            slot_bytes=newest.slot_bytes,
            stream_id=key,
            generation=newest.generation,
        )
        self._receiving[key] = channel
        return channel, newest.generation

    def is_stale(self, channel: SendMpi | RecvMpi, rank: int) -> bool:
        """Whether the process at the other end does not hold ``rank`` any more."""
        return channel.peer != self._process_of(rank)

    def _tags_for(self, peer: int) -> int:
        tag = self._next_tag.get(peer, OFFER_TAG + TAGS)
        if tag + TAGS - 1 > self._tag_limit:
            raise UsageError(
                f"this MPI has {self._tag_limit} tags, and all are used for channels to process "
                f"{peer}: restart the job from its ledger with --resume, or open fewer streams"
            )
        self._next_tag[peer] = tag + TAGS
        return tag

    def _collect(self, peer: int) -> None:
        """Take the offers that have come from a process."""
        note: np.ndarray = self._note
        while self._wire.fetch(note, peer, OFFER_TAG):
            values = notes.read(note)
            if values is None or values[0] != _OFFER:
                continue
            _, key, generation, slots, slot_bytes, tag, _ = values
            offer = _Offer(peer, generation, slots, slot_bytes, tag)
            self._offers.setdefault(key, []).append(offer)
