"""Our own client at a served namespace, for one test: its queues, and factories that are closed at its end.

    queue = bus.create_queue(LockDuration="PT5S")
    await queue.send(BrokeredMessage("an order"))

Owns: the loop's peace. A test fails if a task is left over, or if something went wrong that nobody heard of.
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
    """The client's side of a test."""

    def __init__(self, server: ServerProcess, *, tls: bool = False) -> None:
        self.server = server
        self._tls = tls
        self._factories: list[MessagingFactory] = []

    def factory(self, connection_string: str | None = None, **options: Any) -> MessagingFactory:  # noqa: ANN401
        """A factory that is closed at the end of the test. Without other wishes it does not try again."""
        shown = self.server.tls_connection_string if self._tls else self.server.connection_string
        usual: dict[str, Any] = {
            "retry_policy": NO_RETRY,
            "operation_timeout": TIMEOUT_S,
            "ca_file": self.server.ca_file,
        }
        factory = MessagingFactory.from_connection_string(connection_string or shown, **(usual | options))
        self._factories.append(factory)
        return factory

    @property
    def shared_factory(self) -> MessagingFactory:
        """The first one, for whoever needs no other."""
        return self._factories[0] if self._factories else self.factory()

    def create_queue(self, **elements: str) -> QueueClient:
        """A client for a queue that no other test has."""
        return self.shared_factory.create_queue_client(self.server.create_queue(**elements))

    def create_topic(self, *subscriptions: str, elements: str = "") -> str:
        """A topic that no other test has, with subscriptions that get all messages."""
        topic = f"topic-of-{self.server.create_queue()}"
        self.server.create_entity(topic, "TopicDescription")
        for name in subscriptions:
            self.server.request("PUT", f"{topic}/Subscriptions/{name}", SUBSCRIPTION.format(elements), expected=201)
        return topic

    def message_counts(self, queue: QueueClient) -> tuple[int, int]:
        """Messages in a queue and in its dead-letter queue."""
        return self.server.message_counts(queue.path)

    async def run(self, test: Coroutine[Any, Any, None]) -> None:
        """The test, and what is to be true after each."""
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        try:
            await asyncio.wait_for(test, TIME_LIMIT_S)
        finally:
            await asyncio.gather(*[factory.close() for factory in self._factories])
        await asyncio.sleep(0)
        gc.collect()
        assert not unheard
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert not tasks, "tasks are left over"


async def receive(receiver: MessageReceiver | QueueClient, count: int) -> list[BrokeredMessage]:
    """So many messages, in as many calls as it takes."""
    received: list[BrokeredMessage] = []
    while len(received) < count:
        found = await receiver.receive_batch(count - len(received), TIMEOUT_S)
        assert found, f"{len(received)} of {count} messages came"
        received += found
    return received


async def receive_one(receiver: MessageReceiver | QueueClient) -> BrokeredMessage:
    """The next message."""
    return (await receive(receiver, 1))[0]


async def wait_until(condition: Callable[[], object]) -> None:
    """Look again and again whether something has happened elsewhere."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110  # it happens in another process
            await asyncio.sleep(0.02)


async def cut_connection(factory: MessagingFactory) -> None:
    """Have its connection lost, as a cable that is pulled out does it."""
    conversation = factory._connection  # noqa: SLF001  # nobody else wants to
    assert conversation is not None
    conversation.abort()
    await asyncio.wait_for(asyncio.shield(conversation.lost), TIMEOUT_S)


def numbered_messages(count: int, **properties: Any) -> list[BrokeredMessage]:  # noqa: ANN401  # those of a message
    """Messages whose bodies are their numbers."""
    return [BrokeredMessage(f"{number}", **properties) for number in range(count)]


def texts(messages: list[BrokeredMessage]) -> list[str]:
    """Their bodies."""
    return [message.text for message in messages]
