"""A program on a pair in memory: its factories, its pairing, and what it was told.

    async with paired(failover_interval=0) as app:
        app.namespaces.primary.outage.stop()
        await app.queue("orders").send(BrokeredMessage("apples"))

Owns: the making and the end of all that. Several programs can be on one pair: `application`.
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
    """One program."""

    def __init__(self, namespaces: InMemoryPair, primary: MessagingFactory, manager: NamespaceManager) -> None:
        self.namespaces = namespaces
        self.primary = primary
        self.manager = manager
        self.pairing: Pairing
        self.events: list[PairingEvent] = []

    def events_of(self, *kinds: EventKind) -> list[PairingEvent]:
        """What it was told of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def queue_client(self, path: str = "orders") -> QueueClient:
        """A client of a queue of the primary, made anew."""
        return self.primary.create_queue_client(path)

    def backlog_path(self, index: int) -> str:
        return f"{self.namespaces.primary.name}/x-servicebus-transfer/{index}"

    async def parked_messages(self) -> list[BrokeredMessage]:
        """All messages in all backlog queues."""
        queues = self.pairing.rotation.queues
        return [message for queue in queues for message in await self.namespaces.secondary.messages(queue.path)]

    async def arrived_bodies(self, path: str = "orders") -> list[str]:
        """The bodies of all messages in a queue of the primary, in order."""
        return [message.text for message in await self.namespaces.primary.messages(path)]


@contextlib.asynccontextmanager
async def paired_application(namespaces: InMemoryPair, **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401  # of the pairing, or of both factories
    """A program that has paired; at its end everything of it is closed.

    The option `ports` says where it finds the primary and the secondary: at those of relays.
    """
    of_factories = {name: options.pop(name) for name in FACTORY_OPTIONS if name in options}
    ports = options.pop("ports", ())
    primary, secondary = namespaces.factories(**of_factories)
    for factory, port in zip((primary, secondary), ports, strict=False):
        factory.where = replace(factory.where, port=port)
    string = namespaces.secondary.admin_connection_string
    async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
        app = Application(namespaces, primary, manager)
        given = {"backlog_queue_count": 3} | options
        chosen = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary, secondary_namespace_manager=manager, **given
        )
        app.pairing = await primary.pair_namespace(chosen)
        app.pairing.on_event(app.events.append)
        try:
            yield app
        finally:
            await app.pairing.close()


@contextlib.asynccontextmanager
async def in_memory_pair_application(queues: Sequence[str] = ("orders",), **options: Any) -> AsyncIterator[Application]:  # noqa: ANN401
    """A pair with queues in its primary, and a program on it."""
    async with InMemoryPair() as namespaces:
        for path in queues:
            await namespaces.primary.create_queue(path)
        async with paired_application(namespaces, **options) as app:
            yield app
