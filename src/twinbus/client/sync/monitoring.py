"""The blocking monitor of a namespace, a wrapper around `client.management.monitor`. Lists are returned as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from twinbus.client.management import monitor
from twinbus.client.sync.background_loop import BlockingObject, call_blocking, close_at_exit, run_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.settings import ClientOptions
    from twinbus.model.status import (
        ConnectionDetails,
        ConnectionStatus,
        DiskStatus,
        EntityDetails,
        EntityKind,
        EntityStatus,
        FailedLogin,
        LockStatus,
        OutageStatus,
        Overview,
        PairingStatus,
        SessionStatus,
        StoreStatus,
        WorkerStatus,
    )

T = TypeVar("T")


class NamespaceMonitor(BlockingObject[monitor.NamespaceMonitor]):
    """Blocking client for the JSON API of one namespace."""

    def __init__(self, inner: monitor.NamespaceMonitor) -> None:
        """Wrap `inner`, which runs on the background loop. Applications usually call `from_connection_string`."""
        super().__init__(inner)
        close_at_exit(inner)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a monitor for the namespace of a connection string. Raise ValueError if the string is invalid."""
        return cls(call_blocking(lambda: monitor.NamespaceMonitor.from_connection_string(text, **options)))

    def overview(self) -> Overview:
        """Return the figures of the namespace as a whole, with its alerts."""
        return run_blocking(self.inner.overview)

    def entities(self, prefix: str = "", kind: EntityKind | None = None) -> list[EntityStatus]:
        """Return the entities whose path starts with `prefix`, in order of path."""
        return run_blocking(lambda: _collect(self.inner.entities(prefix, kind)))

    def entity(self, path: str) -> EntityDetails:
        """Return one entity with its fragments. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.entity(path))

    def locks(self, path: str) -> list[LockStatus]:
        """Return the locks of a queue, a subscription or one of their sub-queues, with their holders."""
        return run_blocking(lambda: _collect(self.inner.locks(path)))

    def sessions(self, path: str) -> list[SessionStatus]:
        """Return the locked sessions of a queue or subscription, with their holders."""
        return run_blocking(lambda: _collect(self.inner.sessions(path)))

    def connections(self) -> list[ConnectionStatus]:
        """Return the AMQP connections of all clients."""
        return run_blocking(lambda: _collect(self.inner.connections()))

    def connection(self, connection_id: str) -> ConnectionDetails:
        """Return one connection with its links. Raise EntityNotFound if it is closed."""
        return run_blocking(lambda: self.inner.connection(connection_id))

    def close_connection(self, connection_id: str) -> None:
        """Close a client's connection. Requires the `Manage` right. Raise EntityNotFound if it is closed already.

        The client sees the error `amqp:connection:forced`; the SDKs connect again.
        """
        run_blocking(lambda: self.inner.close_connection(connection_id))

    def stores(self) -> list[StoreStatus]:
        """Return all stores; an unavailable store has the reason."""
        return run_blocking(self.inner.stores)

    def workers(self) -> list[WorkerStatus]:
        """Return all processes of the server."""
        return run_blocking(self.inner.workers)

    def disks(self) -> list[DiskStatus]:
        """Return the free space on the disks of all stores."""
        return run_blocking(self.inner.disks)

    def pairings(self) -> list[PairingStatus]:
        """Return a summary of the reports from paired clients, for each primary."""
        return run_blocking(self.inner.pairings)

    def outages(self) -> list[OutageStatus]:
        """Return the rehearsed outages that are active now."""
        return run_blocking(self.inner.outages)

    def failed_logins(self) -> list[FailedLogin]:
        """Return the last failed logins, the latest first. Requires the `Manage` right."""
        return run_blocking(self.inner.failed_logins)

    def metrics(self) -> str:
        """Return the metrics of the namespace, in the text format of Prometheus."""
        return run_blocking(self.inner.metrics)


async def _collect(iterator: AsyncIterator[T]) -> list[T]:
    return [item async for item in iterator]
