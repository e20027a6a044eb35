"""A partitioned queue in memory with a client, and helpers that look into its fragments.

async with partitioned_namespace() as orders:
    await orders.client.send(BrokeredMessage("apples", partition_key=key_for_fragment(5)))
    assert await orders.fragments() == [5]
"""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from twinbus.client import NO_RETRY, BrokeredMessage
from twinbus.model.errors import FragmentUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue
from twinbus.testing import InMemoryNamespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from twinbus.client import MessagingFactory, QueueClient, SubscriptionClient

FRAGMENTS = 16
STORES = 4


class PartitionedNamespace:
    """A namespace with a partitioned queue `orders`."""

    def __init__(self, namespace: InMemoryNamespace, factory: MessagingFactory) -> None:
        self.namespace = namespace
        self.factory = factory
        self.client: QueueClient = factory.create_queue_client("orders")

    async def queue(self, path: str, **description: Any) -> QueueClient:  # noqa: ANN401  # fields of a description
        """Create another queue (default: partitioned), and return a client of it."""
        await self.namespace.create_queue(path, **{"enable_partitioning": True} | description)
        return self.factory.create_queue_client(path)

    async def fragments(self, path: str = "orders") -> list[int]:
        """Return the fragment of each message of an entity."""
        return [fragment_of_message(message) for message in await self.namespace.messages(path)]

    def locks(self, path: str = "orders") -> int:
        """Return the number of locked messages."""
        fragments = self.namespace.broker.find_receivable(path).fragments_of(SubQueue.MAIN)
        return sum(len(fragment.local.locks.by_number) for fragment in fragments)

    async def texts(self, path: str = "orders") -> list[str]:
        return sorted(message.text for message in await self.namespace.messages(path))

    def fail(self, store: int) -> None:
        """Make a store fail; the broker notices at the next use of the store."""
        self.namespace.outage.fail_store(store)

    async def probe_store(self, number: int) -> None:
        """Make a store fail, and send to it until the broker has marked it as unavailable."""
        self.fail(number)
        commit_log = self.namespace.broker.stores[number]
        while commit_log.unavailable_reason is None:
            with suppress(FragmentUnavailable):
                await self.client.send(BrokeredMessage("the last", partition_key=key_for_fragment(number)))


@asynccontextmanager
async def partitioned_namespace(*, stores: int = STORES, **description: Any) -> AsyncIterator[PartitionedNamespace]:  # noqa: ANN401  # fields of the description
    """Create a partitioned queue `orders`, with a client that does not retry."""
    async with InMemoryNamespace(stores=stores) as namespace:
        await namespace.create_queue("orders", **{"enable_partitioning": True} | description)
        yield PartitionedNamespace(namespace, namespace.factory(retry_policy=NO_RETRY, operation_timeout=60))


def key_for_fragment(fragment: int, number: int = 0) -> str:
    """Return a partition key that maps to a fragment; each number gives another key."""
    keys = (key for key in map("key {}".format, itertools.count()) if fragment_of(key.encode()) == fragment)
    return next(itertools.islice(keys, number, None))


def fragment_of_message(message: BrokeredMessage | int) -> int:
    """Return the fragment of a message: the top 16 bits of its sequence number."""
    number = message if isinstance(message, int) else message.sequence_number
    return number >> 48


def numbered_messages(count: int, **properties: Any) -> list[BrokeredMessage]:  # noqa: ANN401  # properties of a message
    return [BrokeredMessage(f"{number}", **properties) for number in range(count)]


def one_per_fragment(**properties: Any) -> list[BrokeredMessage]:  # noqa: ANN401  # properties of a message
    """Return one message for each fragment."""
    return [
        BrokeredMessage(f"{number}", partition_key=key_for_fragment(number), **properties)
        for number in range(FRAGMENTS)
    ]


def texts(messages: Iterable[BrokeredMessage]) -> list[str]:
    return [message.text for message in messages]


async def receive_all(client: QueueClient, max_count: int = 1_000) -> list[BrokeredMessage]:
    """Receive and complete all messages, at most about `max_count`."""
    messages: list[BrokeredMessage] = []
    while len(messages) < max_count and (page := await client.receive_batch(max_count, timeout=1)):
        messages += page
        for message in page:
            await client.complete(message)
    return messages


async def receive(client: QueueClient | SubscriptionClient, count: int) -> list[BrokeredMessage]:
    """Receive `count` messages, in as many calls as needed."""
    messages: list[BrokeredMessage] = []
    while len(messages) < count:
        page = await client.receive_batch(count - len(messages), timeout=5)
        assert page, f"{len(messages)} of {count} messages were received"
        messages += page
    return messages


async def send_all(client: QueueClient, messages: Sequence[BrokeredMessage]) -> None:
    for message in messages:
        await client.send(message)
