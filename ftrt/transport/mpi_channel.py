"""The plane of messages: frames of slots travel over MPI, for ranks that share no memory.

Each end has a ring of its own in private memory, and MPI moves slots from one to the other. The
sender's slots are the retained copy and are sent from in place; the receiver's slots have receives
posted beforehand, their publish words cleared, and are verified in place. The publish word does
not travel: the receiver stores it once MPI says that the slot is whole.

Each generation of a link has tags, slots and stream numbers of its own, so that a message of an
old one reaches nobody: four tags in a row for frames, what the receiver tells, frames sent again,
and the sender's end.
"""

from ftrt.transport.mpi_parts import TAGS, Wire
from ftrt.transport.mpi_recv import RecvMpi
from ftrt.transport.mpi_send import SendMpi

__all__ = ["TAGS", "RecvMpi", "SendMpi", "Wire"]
