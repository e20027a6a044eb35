"""Two namespaces in processes of their own, and a program that has paired them.

    async with servers(tmp_path) as (primary, secondary), application(primary, secondary) as app:
        primary.kill()
        await app.queue.send(BrokeredMessage("apples"))

Owns: the processes, the factories and their end. Times are short, so that a test takes seconds: an operation has 4,
of which the primary gets 2; failover is at once, and a ping goes out every second.
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
    """For a client; of whatever stands at that port, where one is given."""
    end = "" if tls else ";UseDevelopmentEmulator=true"
    place = f"{host or server.host}:{port or server.amqp_port}"
    return f"Endpoint=sb://{place};SharedAccessKeyName={server.key_name};SharedAccessKey={server.key}{end}"


def connect_manager(server: ServerProcess) -> NamespaceManager:
    """Who may make backlog queues there."""
    return NamespaceManager.from_connection_string(
        connection_string(server, port=server.http_port), operation_timeout=OPERATION_TIMEOUT_S
    )


@contextlib.asynccontextmanager
async def run_server_pair(
    folder: Path, *, primary_options: Sequence[str] = (), queue: str | None = QUEUE
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """The two of a pair, and a queue in the primary. However they are left, they are gone at the end."""
    both = []
    for name, options in (("contoso", primary_options), ("contoso-backup", ())):
        (folder / name).mkdir()
        both.append(ServerProcess(folder / name, options=options, name=name))
    try:
        await asyncio.gather(*[asyncio.to_thread(server.start) for server in both])
        if queue is not None:
            await create_queue(both[0], queue)
        yield both[0], both[1]
        for server in both:
            server.check_log()
    finally:
        for server in both:
            server.kill()


async def create_queue(server: ServerProcess, path: str) -> None:
    async with connect_manager(server) as manager:
        await manager.create_queue(path)


class Application:
    """One program on the pair."""

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
        """The reason of that state."""
        return str(self.pairing.health_of(QUEUE).failure)

    def is_in(self, state: EntityState) -> bool:
        """What is held of the queue now."""
        return self.pairing.health_of(QUEUE).state is state

    def events_of(self, *kinds: EventKind) -> list[PairingEvent]:
        return [event for event in self.events if event.kind in kinds]

    async def send(self, *texts: str) -> None:
        """One after the other."""
        for text in texts:
            await self.queue.send(BrokeredMessage(text, message_id=text))

    async def seconds_to_send(self, text: str) -> float:
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await self.send(text)
        return loop.time() - before_s

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110  # whatever it is, in whichever process
                await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_for_event(self, kind: EventKind, count: int = 1) -> None:
        await self.wait_until(lambda: len(self.events_of(kind)) >= count)

    async def parked_messages(self) -> list[BrokeredMessage]:
        """What lies in the backlog queues."""
        async with MessagingFactory.from_connection_string(
            connection_string(self.secondary), operation_timeout=OPERATION_TIMEOUT_S
        ) as secondary:
            found = []
            for queue in self.pairing.rotation.queues:
                found += await secondary.create_message_receiver(queue.path).peek_batch(100)
        return found

    async def parked_texts(self) -> list[str]:
        return sorted(message.text for message in await self.parked_messages())


async def receive_all(server: ServerProcess, count: int, path: str = QUEUE) -> list[BrokeredMessage]:
    """All messages of a queue: at least so many are waited for. The server is asked itself, past any relay."""
    found: list[BrokeredMessage] = []
    async with MessagingFactory.from_connection_string(connection_string(server)) as factory:
        client = factory.create_queue_client(path, ReceiveMode.RECEIVE_AND_DELETE)
        while batch := await client.receive_batch(100, TIMEOUT_S if len(found) < count else IDLE_TIMEOUT_S):
            found += batch
    return found


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
    """A program that has paired. `port` is where it looks for the primary: a relay's; `factory` is another for it."""
    one = factory or MessagingFactory.from_connection_string(
        connection_string(primary, port=port), operation_timeout=OPERATION_TIMEOUT_S
    )
    other = MessagingFactory.from_connection_string(connection_string(secondary), operation_timeout=OPERATION_TIMEOUT_S)
    given: dict[str, Any] = {
        "failover_interval": 0,
        "ping_primary_interval": PING_INTERVAL_S,
        "backlog_queue_count": BACKLOG_QUEUES,
        "primary_namespace_name": "contoso",
    }
    async with one, other, connect_manager(secondary) as manager:
        chosen = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=other, secondary_namespace_manager=manager, **given | options
        )
        async with await one.pair_namespace(chosen) as pairing:
            yield Application(primary, secondary, one, pairing)
