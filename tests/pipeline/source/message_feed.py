"""A namespace with messages to read: one server for all tests, and a separate queue for each test.

    queue = feed.queue(partitioned=True)
    feed.send(queue, 100)

Sends and receives use the blocking client, since tests with Spark have no event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.client.sync import BrokeredMessage, MessagingFactory, ReceiveMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.server_process import ServerProcess
    from twinbus.client.sync import MessageReceiver

BATCH_SIZE = 100
TIMEOUT_S = 20.0
SUBSCRIPTION = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<SubscriptionDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/>'
    "</content></entry>"
)


class MessageFeed:
    """Creates entities, sends messages, and receives them outside Spark."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.factory = MessagingFactory.from_connection_string(
            server.connection_string, ca_file=server.ca_file, operation_timeout=TIMEOUT_S
        )

    def options(self, entity: str, **others: object) -> dict[str, str]:
        """Return options for the data source, as a user passes them."""
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in others.items()}
        return {"connectionString": self.server.connection_string, "entity": entity, **texts}

    def queue(self, *, partitioned: bool = False, **elements: str) -> str:
        if partitioned:
            elements["EnablePartitioning"] = "true"
        return self.server.create_queue(**elements)

    def topic(self, *subscriptions: str) -> str:
        topic = f"topic-of-{self.server.create_queue()}"
        self.server.create_entity(topic, "TopicDescription")
        for name in subscriptions:
            self.server.request("PUT", f"{topic}/Subscriptions/{name}", SUBSCRIPTION, expected=201)
        return topic

    def send(self, path: str, count: int, *, first: int = 0) -> None:
        """Send `count` messages whose bodies and ids are consecutive numbers."""
        self.send_all(path, (BrokeredMessage(f"{n}", message_id=f"{n}") for n in range(first, first + count)))

    def send_all(self, path: str, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages in batches, or one by one if they have keys: a batch goes to one fragment."""
        sender = self.factory.create_message_sender(path)
        pending = list(messages)
        keyed = any(message.session_id or message.partition_key for message in pending)
        for start in range(0, len(pending), 1 if keyed else BATCH_SIZE):
            sender.send_batch(pending[start : start + (1 if keyed else BATCH_SIZE)])
        sender.close()

    def receive(self, path: str, count: int) -> list[BrokeredMessage]:
        """Receive and delete `count` messages."""
        with self.factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            received: list[BrokeredMessage] = []
            while len(received) < count:
                batch = receiver.receive_batch(count - len(received), TIMEOUT_S)
                assert batch, f"{len(received)} of {count} came"
                received += batch
        return received

    def receiver(self, path: str, *, prefetch: int = 0) -> MessageReceiver:
        return self.factory.create_message_receiver(path, prefetch=prefetch)

    def purge(self, path: str) -> None:
        from twinbus.client.sync.background_loop import run_blocking  # noqa: PLC0415

        run_blocking(lambda: self.factory.inner.request(path, "twinbus:purge", {}, timeout_s=TIMEOUT_S))

    def count(self, path: str) -> int:
        """Return the number of active messages."""
        return self.server.message_counts(path)[0]

    def close(self) -> None:
        self.factory.close()
