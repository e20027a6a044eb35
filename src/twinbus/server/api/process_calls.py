"""Requests of the API to one process of the server, and their results.

Owns the types, which travel between processes as MessagePack, inside `GetStatus` and `Status` of the peer protocol.
These types contain lock numbers, by which one process names a lock in another process. Responses to clients contain no
lock numbers.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from twinbus.broker.ports.inspection import HeldLock, HeldSession, PartFigures  # noqa: TC001  # msgspec reads them
from twinbus.model.status import (  # msgspec reads them
    ConnectionDetails,
    ConnectionStatus,
    DiskStatus,
    FailedLogin,
    Holder,
    WorkerStatus,
)


class _Call(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base class of all requests."""


class _Result(msgspec.Struct, array_like=True, frozen=True):
    """Base class of all results."""


class GetFigures(_Call, frozen=True):
    """Get the figures of entities. Result: a list of `EntityFigures`."""

    entity_ids: list[int]
    max_reads: int
    """How many enqueued times of oldest messages may be read from stores; other times are from the last read."""


class GetFragments(_Call, frozen=True):
    """Get the figures of each fragment of an entity that the process owns. Result: a list of `FragmentFigures`."""

    entity_id: int


class GetLocks(_Call, frozen=True):
    """Get locks of a sub-queue that the process owns. Result: a list of `FragmentLock`."""

    entity_id: int
    sub_queue: int
    after: int
    limit: int


class GetSessions(_Call, frozen=True):
    """Get locked sessions that the process owns. Result: a list of `FragmentSession`."""

    entity_id: int
    after: bytes
    limit: int


class FindHolders(_Call, frozen=True):
    """Find the links of this process's clients that hold locks or sessions. Result: `Holders`."""

    entity_id: int
    sub_queue: int
    lock_numbers: list[int]
    session_ids: list[bytes]


class ListConnections(_Call, frozen=True):
    """Get a page of connections. Result: a list of `ConnectionStatus`."""

    after: int
    limit: int


class GetConnection(_Call, frozen=True):
    """Get a connection with its links. Result: `ConnectionDetails`, or None."""

    number: int


class CloseConnection(_Call, frozen=True):
    """Close a connection. Result: whether it was open."""

    number: int
    by_key: str
    """The name of the key of the caller who closes the connection, for the log."""


class GetProcess(_Call, frozen=True):
    """Get the figures of the process. Result: `ProcessFigures`."""


class ListFailedLogins(_Call, frozen=True):
    """Get the last failed logins. Result: a list of `FailedLogin`."""

    limit: int


ProcessCall: TypeAlias = (
    GetFigures
    | GetFragments
    | GetLocks
    | GetSessions
    | FindHolders
    | ListConnections
    | GetConnection
    | CloseConnection
    | GetProcess
    | ListFailedLogins
)


class EntityFigures(_Result, frozen=True, gc=False):
    """The figures of an entity in one process, or in all processes after their answers were combined.

    There are thousands. They have no reference cycles, so the garbage collector skips them.
    """

    entity_id: int
    figures: PartFigures | None
    """The figures of the fragments that the process owns; None if it owns none."""
    oldest_ms: int | None
    """Enqueued time of the oldest active message in these fragments."""
    senders: int
    receivers: int
    accessed_ms: int
    rates: tuple[float, float, float]
    """Messages per second that clients of the process sent, received and settled."""
    is_complete: bool = True
    """Whether current or earlier figures of all fragments are known; set when the answers of processes are combined."""


class FragmentFigures(_Result, frozen=True):
    """The figures of one fragment."""

    number: int
    figures: PartFigures


class FragmentLock(_Result, frozen=True):
    """A lock, and its fragment."""

    fragment: int
    lock: HeldLock


class FragmentSession(_Result, frozen=True):
    """A locked session, and its fragment."""

    fragment: int
    session: HeldSession


class Holders(_Result, frozen=True):
    """Holders by lock number and by session id."""

    by_lock: dict[int, Holder]
    by_session: dict[bytes, Holder]


class ProcessFigures(_Result, frozen=True):
    """The figures of one process."""

    worker: WorkerStatus
    disks: list[DiskStatus]
    opened_connections: int
    failed_logins: int
    recent_failed_logins: int
    usage: list[int]
    """Operations of clients since the process was started, in the order of `usage_rates.OPERATIONS`."""


CALL_DECODER: Final = msgspec.msgpack.Decoder(ProcessCall)
RESULT_TYPES: Final[dict[type, object]] = {
    GetFigures: list[EntityFigures],
    GetFragments: list[FragmentFigures],
    GetLocks: list[FragmentLock],
    GetSessions: list[FragmentSession],
    FindHolders: Holders,
    ListConnections: list[ConnectionStatus],
    GetConnection: ConnectionDetails | None,
    CloseConnection: bool,
    GetProcess: ProcessFigures,
    ListFailedLogins: list[FailedLogin],
}
