"""Two namespaces, each a server process, and an application that has paired them.

    async with run_server_pair(tmp_path) as (primary, secondary), paired_application(primary, secondary) as app:
        primary.kill()
        await app.queue.send(BrokeredMessage("apples"))

Owns: the processes and the factories, from start to stop. Times are short, so that a test takes seconds: the operation
timeout is 4 s, of which the primary gets 2 s; failover is immediate, and a ping is sent every second.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from tests.support.server_process import ServerProcess
from twinbus.client import BrokeredMessage, MessagingFactory, ReceiveMode
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from twinbus.client import QueueClient
    from twinbus.client.pairing import EntityState, Pairing, PairingEvent

OPERATION_TIMEOUT_S: Final = 4.0
PING_INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.02
IDLE_TIMEOUT_S: Final = 0.3
QUEUE: Final = "orders"
BACKLOG_QUEUES: Final = 2


def connection_string(
    server: ServerProcess, *, host: str | None = None, port: int | None = None, tls: bool = False
) -> str:
    """Return a connection string for clients; `host` and `port` replace the server's own, for example by a relay's."""
    suffix = "" if tls else ";UseDevelopmentEmulator=true"
    endpoint = f"{host or server.host}:{port or server.amqp_port}"
    return f"Endpoint=sb://{endpoint};SharedAccessKeyName={server.key_name};SharedAccessKey={server.key}{suffix}"


def connect_manager(server: ServerProcess) -> NamespaceManager:
    """Return a manager with the right to create backlog queues."""
    return NamespaceManager.from_connection_string(
        connection_string(server, port=server.http_port), operation_timeout=OPERATION_TIMEOUT_S
    )


@contextlib.asynccontextmanager
async def run_server_pair(
    folder: Path, *, primary_options: Sequence[str] = (), queue: str | None = QUEUE
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """Start the two servers of a pair, and create a queue in the primary. At the end both are killed."""
    servers = []
    for name, options in (("contoso", primary_options), ("contoso-backup", ())):
        (folder / name).mkdir()
        servers.append(ServerProcess(folder / name, options=options, name=name))
    try:
        await asyncio.gather(*[asyncio.to_thread(server.start) for server in servers])
        if queue is not None:
            await create_queue(servers[0], queue)
        yield servers[0], servers[1]
        for server in servers:
            server.check_log()
    finally:
        for server in servers:
            server.kill()


async def create_queue(server: ServerProcess, path: str) -> None:
    async with connect_manager(server) as manager:
        await manager.create_queue(path)


class Application:
    """An application process that uses the pair."""

    def __init__(
        self, primary: ServerProcess, secondary: ServerProcess, factory: MessagingFactory, pairing: Pairing
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.factory = factory
        self.pairing = pairing
        self.queue: QueueClient = factory.create_queue_client(QUEUE)
        self.events: list[PairingEvent] = []
        pairing.on_event(self.events.append)

    @property
    def unhealthy_reason(self) -> str:
        """The failure that made the queue unhealthy."""
        return str(self.pairing.health_of(QUEUE).failure)

    def is_in(self, state: EntityState) -> bool:
        """Whether the pairing currently sees the queue in a state."""
        return self.pairing.health_of(QUEUE).state is state

    def events_of(self, *kinds: EventKind) -> list[PairingEvent]:
        return [event for event in self.events if event.kind in kinds]

    async def send(self, *texts: str) -> None:
        """Send messages one after the other, each with its text as message id."""
        for text in texts:
            await self.queue.send(BrokeredMessage(text, message_id=text))

    async def seconds_to_send(self, text: str) -> float:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await self.send(text)
        return loop.time() - before_s

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110  # conditions may depend on other processes
                await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_for_event(self, kind: EventKind, count: int = 1) -> None:
        await self.wait_until(lambda: len(self.events_of(kind)) >= count)

    async def parked_messages(self) -> list[BrokeredMessage]:
        """Return the messages in the backlog queues."""
        async with MessagingFactory.from_connection_string(
            connection_string(self.secondary), operation_timeout=OPERATION_TIMEOUT_S
        ) as secondary:
            messages = []
            for queue in self.pairing.rotation.queues:
                messages += await secondary.create_message_receiver(queue.path).peek_batch(100)
        return messages

    async def parked_texts(self) -> list[str]:
        return sorted(message.text for message in await self.parked_messages())


async def receive_all(server: ServerProcess, count: int, path: str = QUEUE) -> list[BrokeredMessage]:
    """Receive all messages of a queue, after waiting for at least `count`. Connects to the server without a relay."""
    messages: list[BrokeredMessage] = []
    async with MessagingFactory.from_connection_string(connection_string(server)) as factory:
        client = factory.create_queue_client(path, ReceiveMode.RECEIVE_AND_DELETE)
        while batch := await client.receive_batch(100, TIMEOUT_S if len(messages) < count else IDLE_TIMEOUT_S):
            messages += batch
    return messages


async def receive_all_texts(server: ServerProcess, count: int) -> list[str]:
    return sorted(message.text for message in await receive_all(server, count))


@contextlib.asynccontextmanager
async def paired_application(
    primary: ServerProcess,
    secondary: ServerProcess,
    *,
    port: int | None = None,
    factory: MessagingFactory | None = None,
    **options: Any,  # noqa: ANN401  # of the pairing
) -> AsyncIterator[Application]:
    """Pair two servers, and close everything at the end.

    `port` replaces the primary's port (for a relay), `factory` replaces the primary's factory.
    """
    primary_factory = factory or MessagingFactory.from_connection_string(
        connection_string(primary, port=port), operation_timeout=OPERATION_TIMEOUT_S
    )
    secondary_factory = MessagingFactory.from_connection_string(
        connection_string(secondary), operation_timeout=OPERATION_TIMEOUT_S
    )
    defaults: dict[str, Any] = {
        "failover_interval": 0,
        "ping_primary_interval": PING_INTERVAL_S,
        "backlog_queue_count": BACKLOG_QUEUES,
        "primary_namespace_name": "contoso",
    }
    async with primary_factory, secondary_factory, connect_manager(secondary) as manager:
        pairing_options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary_factory, secondary_namespace_manager=manager, **defaults | options
        )
        async with await primary_factory.pair_namespace(pairing_options) as pairing:
            yield Application(primary, secondary, primary_factory, pairing)
