"""Clients of one test: factories, which are closed after the test, and queues that no other test uses.

    queue = bus.create_queue(LockDuration="PT5S")
    await queue.send(BrokeredMessage("an order"))

A test fails if it leaves tasks behind or if the event loop reports an unhandled exception.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

from twinbus.client import NO_RETRY, BrokeredMessage, MessagingFactory, QueueClient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.support.server_process import ServerProcess
    from twinbus.client import MessageReceiver

TIME_LIMIT_S = 100.0
TIMEOUT_S = 20.0
SHORTEST_LOCK_S = 5.0
SESSIONS = {"RequiresSession": "true"}
SHORT_LOCK = {"LockDuration": "PT5S"}
SUBSCRIPTION = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<SubscriptionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "{}</SubscriptionDescription></content></entry>"
)


class Bus:
    """Factories and entities of one test."""

    def __init__(self, server: ServerProcess, *, tls: bool = False) -> None:
        self.server = server
        self._tls = tls
        self._factories: list[MessagingFactory] = []

    def factory(self, connection_string: str | None = None, **options: Any) -> MessagingFactory:  # noqa: ANN401
        """Return a factory that is closed at the end of the test (default: no retries)."""
        default_string = self.server.tls_connection_string if self._tls else self.server.connection_string
        defaults: dict[str, Any] = {
            "retry_policy": NO_RETRY,
            "operation_timeout": TIMEOUT_S,
            "ca_file": self.server.ca_file,
        }
        factory = MessagingFactory.from_connection_string(connection_string or default_string, **(defaults | options))
        self._factories.append(factory)
        return factory

    @property
    def shared_factory(self) -> MessagingFactory:
        """The first factory; created if there is none."""
        return self._factories[0] if self._factories else self.factory()

    def create_queue(self, **elements: str) -> QueueClient:
        """Create a queue with a unique name and return a client for it."""
        return self.shared_factory.create_queue_client(self.server.create_queue(**elements))

    def create_topic(self, *subscriptions: str, elements: str = "") -> str:
        """Create a topic with a unique name, and subscriptions that get all messages; return its path."""
        topic = f"topic-of-{self.server.create_queue()}"
        self.server.create_entity(topic, "TopicDescription")
        for name in subscriptions:
            self.server.request("PUT", f"{topic}/Subscriptions/{name}", SUBSCRIPTION.format(elements), expected=201)
        return topic

    def message_counts(self, queue: QueueClient) -> tuple[int, int]:
        """Return the numbers of messages in a queue and in its dead-letter queue."""
        return self.server.message_counts(queue.path)

    async def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run the test, close its factories, and check that nothing is left behind."""
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        try:
            await asyncio.wait_for(test, TIME_LIMIT_S)
        finally:
            await asyncio.gather(*[factory.close() for factory in self._factories])
        await asyncio.sleep(0)
        gc.collect()
        assert not unhandled
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert not tasks, "tasks are left over"


async def receive(receiver: MessageReceiver | QueueClient, count: int) -> list[BrokeredMessage]:
    """Receive `count` messages, in as many calls as necessary."""
    received: list[BrokeredMessage] = []
    while len(received) < count:
        batch = await receiver.receive_batch(count - len(received), TIMEOUT_S)
        assert batch, f"received {len(received)} of {count} messages"
        received += batch
    return received


async def receive_one(receiver: MessageReceiver | QueueClient) -> BrokeredMessage:
    """Receive the next message."""
    return (await receive(receiver, 1))[0]


async def wait_until(condition: Callable[[], object]) -> None:
    """Poll until the condition is true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  # the change happens in another process
            await asyncio.sleep(0.02)


async def cut_connection(factory: MessagingFactory) -> None:
    """Abort the factory's connection, as a network failure does."""
    connection = factory._connection  # noqa: SLF001  # there is no public way to abort it
    assert connection is not None
    connection.abort()
    await asyncio.wait_for(asyncio.shield(connection.lost), TIMEOUT_S)


def numbered_messages(count: int, **properties: Any) -> list[BrokeredMessage]:  # noqa: ANN401  # keyword arguments of BrokeredMessage
    """Return messages whose bodies are their numbers."""
    return [BrokeredMessage(f"{number}", **properties) for number in range(count)]


def texts(messages: list[BrokeredMessage]) -> list[str]:
    """Return the bodies of messages."""
    return [message.text for message in messages]
