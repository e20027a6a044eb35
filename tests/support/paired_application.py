"""An application on an in-memory pair of namespaces: its factories, its pairing, and the events that it received.

    async with in_memory_pair_application(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue_client("orders").send(BrokeredMessage("apples"))

Owns: creating and closing these objects. To run several applications on one pair, use `paired_application`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import SendAvailabilityPairedNamespaceOptions
from twinbus.testing import InMemoryPair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from twinbus.client import BrokeredMessage, MessagingFactory, QueueClient
    from twinbus.client.pairing import EventKind, Pairing, PairingEvent

FACTORY_OPTIONS = ("operation_timeout", "retry_policy")


class Application:
    """One application."""

    def __init__(self, namespaces: InMemoryPair, primary: MessagingFactory, manager: NamespaceManager) -> None:
        self.namespaces = namespaces
        self.primary = primary
        self.manager = manager
        self.pairing: Pairing
        self.events: list[PairingEvent] = []

    def events_of(self, *kinds: EventKind) -> list[PairingEvent]:
        """Return the events of these kinds, in the order in which they were received."""
        return [event for event in self.events if event.kind in kinds]

    def queue_client(self, path: str = "orders") -> QueueClient:
        """Create a new client of a queue in the primary."""
        return self.primary.create_queue_client(path)

    def backlog_path(self, index: int) -> str:
        return f"{self.namespaces.primary.name}/x-servicebus-transfer/{index}"

    async def parked_messages(self) -> list[BrokeredMessage]:
        """Return all messages in all backlog queues."""
        queues = self.pairing.rotation.queues
        return [message for queue in queues for message in await self.namespaces.secondary.messages(queue.path)]

    async def arrived_bodies(self, path: str = "orders") -> list[str]:
        """Return the bodies of all messages in a queue of the primary, in order."""
        return [message.text for message in await self.namespaces.primary.messages(path)]


@contextlib.asynccontextmanager
async def paired_application(namespaces: InMemoryPair, **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401  # options of the pairing, or of both factories
    """Pair the namespaces in an application, and close everything at the end.

    The option `ports` replaces the ports of the primary and the secondary, for relays.
    """
    factory_options = {name: options.pop(name) for name in FACTORY_OPTIONS if name in options}
    ports = options.pop("ports", ())
    primary, secondary = namespaces.factories(**factory_options)
    for factory, port in zip((primary, secondary), ports, strict=False):
        factory.where = replace(factory.where, port=port)
    string = namespaces.secondary.admin_connection_string
    async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
        app = Application(namespaces, primary, manager)
        pairing_options = {"backlog_queue_count": 3} | options
        paired_namespace_options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary, secondary_namespace_manager=manager, **pairing_options
        )
        app.pairing = await primary.pair_namespace(paired_namespace_options)
        app.pairing.on_event(app.events.append)
        try:
            yield app
        finally:
            await app.pairing.close()


@contextlib.asynccontextmanager
async def in_memory_pair_application(queues: Sequence[str] = ("orders",), **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401
    """Create a pair with queues in its primary, and an application on it."""
    async with InMemoryPair() as namespaces:
        for path in queues:
            await namespaces.primary.create_queue(path)
        async with paired_application(namespaces, **options) as app:
            yield app
