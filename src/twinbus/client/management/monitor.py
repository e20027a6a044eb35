"""The monitor of a namespace: reads its figures, connections, locks and sessions, and closes connections.

    async with NamespaceMonitor.from_connection_string(text) as monitor:
        async for entity in monitor.entities(prefix="ord"):
            print(entity.path, entity.counts.active, entity.rates.sent)

Owns the addresses of the JSON API (docs/api.md) and the paging of its lists. The resources are in `model.status`, and
HTTP is in `atom_client`. Service Bus has no such API, so a monitor works with twinbus only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

import msgspec

from twinbus.client.connection_string import ConnectionString
from twinbus.client.errors import UnknownAnswer
from twinbus.client.management.atom_client import AtomClient
from twinbus.client.settings import FactorySettings, settings_from_options
from twinbus.model.status import (
    ConnectionDetails,
    ConnectionPage,
    Disks,
    EntityDetails,
    EntityPage,
    FailedLogins,
    LockPage,
    Overview,
    Pairings,
    RehearsedOutages,
    SessionPage,
    Stores,
    Workers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from twinbus.client.settings import ClientOptions
    from twinbus.client.tokens import TokenProvider
    from twinbus.model.status import (
        ConnectionStatus,
        DiskStatus,
        EntityKind,
        EntityStatus,
        FailedLogin,
        LockStatus,
        OutageStatus,
        PairingStatus,
        SessionStatus,
        StoreStatus,
        WorkerStatus,
    )

T = TypeVar("T")
_API: Final = "$api/v1"
_PAGE_SIZE: Final = "1000"
_NO_QUERY: Final[Mapping[str, str]] = {}


class NamespaceMonitor:
    """Client for the JSON API of one namespace."""

    def __init__(
        self,
        where: ConnectionString,
        settings: FactorySettings | None = None,
        *,
        token_provider: TokenProvider | None = None,
    ) -> None:
        """Create a monitor; the first operation connects. Applications usually call `from_connection_string`."""
        self.where = where
        self.settings = settings if settings is not None else FactorySettings()
        self._client = AtomClient(where, self.settings, token_provider)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a monitor for the namespace of a connection string. Raise ValueError if the string is invalid.

        The options and the default ports are those of `NamespaceManager.from_connection_string`.
        """
        provider = options.get("token_provider")
        return cls(ConnectionString.parse(text), settings_from_options(options), token_provider=provider)

    def __repr__(self) -> str:
        return f"<NamespaceMonitor {self.where.http_base}{' closed' if self._client.is_closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the HTTP connections. Idempotent."""
        await self._client.close()

    # --- entities -----------------------------------------------------------------------------------------------------

    async def overview(self) -> Overview:
        """Return the figures of the namespace as a whole, with its alerts."""
        return await self._get("overview", Overview)

    async def entities(self, prefix: str = "", kind: EntityKind | None = None) -> AsyncIterator[EntityStatus]:
        """Yield the entities whose path starts with `prefix`, in order of path."""
        query = {"prefix": prefix, **({"kind": kind} if kind is not None else {})}
        after: str | None = ""
        while after is not None:
            page = await self._get("entities", EntityPage, _page_query(after, query))
            for entity in page.entities:
                yield entity
            after = page.next

    async def entity(self, path: str) -> EntityDetails:
        """Return one entity with its fragments. Raise EntityNotFound if there is none."""
        return await self._get(f"entities/{path}", EntityDetails)

    async def locks(self, path: str) -> AsyncIterator[LockStatus]:
        """Yield the locks of a queue, a subscription or one of their sub-queues, with their holders."""
        after: str | None = ""
        while after is not None:
            page = await self._get(f"locks/{path}", LockPage, _page_query(after))
            for lock in page.locks:
                yield lock
            after = page.next

    async def sessions(self, path: str) -> AsyncIterator[SessionStatus]:
        """Yield the locked sessions of a queue or subscription, with their holders."""
        after: str | None = ""
        while after is not None:
            page = await self._get(f"sessions/{path}", SessionPage, _page_query(after))
            for session in page.sessions:
                yield session
            after = page.next

    # --- connections --------------------------------------------------------------------------------------------------

    async def connections(self) -> AsyncIterator[ConnectionStatus]:
        """Yield the AMQP connections of all clients."""
        after: str | None = ""
        while after is not None:
            page = await self._get("connections", ConnectionPage, _page_query(after))
            for connection in page.connections:
                yield connection
            after = page.next

    async def connection(self, connection_id: str) -> ConnectionDetails:
        """Return one connection with its links. Raise EntityNotFound if it is closed."""
        return await self._get(f"connections/{connection_id}", ConnectionDetails)

    async def close_connection(self, connection_id: str) -> None:
        """Close a client's connection. Requires the `Manage` right. Raise EntityNotFound if it is closed already.

        The client sees the error `amqp:connection:forced`; the SDKs connect again.
        """
        await self._client.fetch("DELETE", f"{_API}/connections/{connection_id}", _NO_QUERY)

    # --- the server ---------------------------------------------------------------------------------------------------

    async def stores(self) -> list[StoreStatus]:
        """Return all stores; an unavailable store has the reason."""
        return (await self._get("stores", Stores)).stores

    async def workers(self) -> list[WorkerStatus]:
        """Return all processes of the server."""
        return (await self._get("workers", Workers)).workers

    async def disks(self) -> list[DiskStatus]:
        """Return the free space on the disks of all stores."""
        return (await self._get("disk", Disks)).disks

    async def pairings(self) -> list[PairingStatus]:
        """Return a summary of the reports from paired clients, for each primary."""
        return (await self._get("pairing", Pairings)).pairings

    async def outages(self) -> list[OutageStatus]:
        """Return the rehearsed outages that are active now."""
        return (await self._get("outages", RehearsedOutages)).outages

    async def failed_logins(self) -> list[FailedLogin]:
        """Return the last failed logins, the latest first. Requires the `Manage` right."""
        return (await self._get("failed-logins", FailedLogins)).failed_logins

    async def metrics(self) -> str:
        """Return the metrics of the namespace, in the text format of Prometheus."""
        return (await self._client.fetch("GET", f"{_API}/metrics", _NO_QUERY)).decode()

    async def _get(self, path: str, kind: type[T], query: Mapping[str, str] = _NO_QUERY) -> T:
        body = await self._client.fetch("GET", f"{_API}/{path}", query)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise UnknownAnswer(f"malformed response to GET of '{_API}/{path}': {error}") from error


def _page_query(after: str, query: Mapping[str, str] = _NO_QUERY) -> dict[str, str]:
    return {"top": _PAGE_SIZE, **query, **({"after": after} if after else {})}
