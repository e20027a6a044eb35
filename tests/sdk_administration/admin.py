"""One interface to both administration clients of the SDK.

    admin.create_queue("orders")
    assert [queue.name for queue in admin.list_queues()] == ["orders"]

Owns: the unmodified sync client, or the unmodified aio client on its own event loop. Paged results are lists.
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
    """A call of a client."""

CLIENTS: dict[str, Any] = {"sync": SyncClient, "aio": AioClient}


class AdministrationClient:
    """Administration client, sync or aio."""

    def __init__(self, kind: str, server: ServerProcess, connection_string: str | None = None, **options: Any) -> None:  # noqa: ANN401  # the SDK's
        """Connect over HTTPS with a verified certificate (default: with the root key)."""
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
        """Return a method of the client that waits for its result."""
        method = getattr(self._client, name)

        def call(*arguments: object, **options: object) -> Any:  # noqa: ANN401  # any result of the SDK
            return self._awaited(method(*arguments, **options))

        return call

    def _awaited(self, result: Any) -> Any:  # noqa: ANN401  # any result of the SDK
        if inspect.isawaitable(result):
            return self._loop.run_until_complete(result)
        if isinstance(result, AsyncItemPaged):
            return self._loop.run_until_complete(_all(result))
        return list(result) if isinstance(result, ItemPaged) else result

    def end(self) -> None:
        """Close the client and its event loop."""
        self.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


async def _all(pages: AsyncItemPaged[Any]) -> list[Any]:
    return [item async for item in pages]
