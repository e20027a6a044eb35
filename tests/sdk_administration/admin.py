"""The SDK's administration clients, both called alike.

    admin.create_queue("orders")
    assert [queue.name for queue in admin.list_queues()] == ["orders"]

Owns: the unmodified sync client, or the unmodified aio client on a loop of its own. Lists are lists, of all pages.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from azure.core.async_paging import AsyncItemPaged
from azure.core.paging import ItemPaged
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioClient
from azure.servicebus.management import ServiceBusAdministrationClient as SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.support.server_process import ServerProcess

    Ask: TypeAlias = Callable[..., object]
    """Some call of a client."""

CLIENTS: dict[str, Any] = {"sync": SyncClient, "aio": AioClient}


class AdministrationClient:
    """One client."""

    def __init__(self, kind: str, server: ServerProcess, connection_string: str | None = None, **options: Any) -> None:  # noqa: ANN401  # the SDK's
        """With the root key, unless a connection string says otherwise; over https, the certificate checked."""
        self.kind = kind
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._client = CLIENTS[kind].from_connection_string(
            connection_string or server.admin_connection_string,
            connection_verify=server.ca_file,
            retry_total=0,
            **options,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the client, that has its answer when it returns."""
        method = getattr(self._client, name)

        def call(*arguments: object, **options: object) -> Any:  # noqa: ANN401  # whatever the SDK answers
            return self._awaited(method(*arguments, **options))

        return call

    def _awaited(self, answer: Any) -> Any:  # noqa: ANN401  # whatever the SDK answers
        if inspect.isawaitable(answer):
            return self._loop.run_until_complete(answer)
        if isinstance(answer, AsyncItemPaged):
            return self._loop.run_until_complete(_all(answer))
        return list(answer) if isinstance(answer, ItemPaged) else answer

    def end(self) -> None:
        """Close it, and its loop."""
        self.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


async def _all(pages: AsyncItemPaged[Any]) -> list[Any]:
    return [item async for item in pages]
