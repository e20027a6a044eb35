"""The number of operations that are charged for messages that are parked, drained and received.

Each message is sent to the backlog, received from it, sent to the primary and received from the primary: four charges
in the document's model. If every call is charged, the two completions make it six. In addition:

- the last receive of a consumer that receives one message at a time is empty: 1;
- a pump has unused credit until it is closed: 1 for each empty queue. (If messages used up exactly the granted credit,
  the next credit would be one more empty receive; so every queue has fewer messages than a pump's window.)
- the ping that finds the primary available: 1;
- not in the document's model: pairing takes 1 list and 1 call for each created queue, and each pump peeks for deferred
  messages before it receives: 1 for each queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.syphon.backlog_consumer import PREFETCH_WINDOW
from twinbus.client.pairing.syphon.manual_drain import ManualDrain

if TYPE_CHECKING:
    from twinbus.client import MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing import Pairing


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted operations for so many messages in so many backlog queues, some of which are empty."""

    messages: int
    queues: int
    empty_queues: int
    pings: int = 1

    @property
    def empty_receives(self) -> int:
        return 1 + self.empty_queues

    @property
    def documented_operations(self) -> int:
        return 4 * self.messages + self.empty_receives + self.pings

    @property
    def operations(self) -> int:
        return 6 * self.messages + self.empty_receives + self.pings + (1 + self.queues) + self.queues


async def park_messages(primary: MessagingFactory, *, clients: int, each: int) -> None:
    """Send while the primary is down; each client sends to a backlog queue of its choice."""
    for _ in range(clients):
        queue = primary.create_queue_client("orders")
        for number in range(each):
            await queue.send(BrokeredMessage(f"order {number}"))
        await queue.close()


async def predict_operations(pairing: Pairing, manager: NamespaceManager, messages: int) -> Prediction:
    """Predict the operations from the number of messages in each backlog queue."""
    runtimes = [await manager.get_queue_runtime(queue.path) for queue in pairing.rotation.queues]
    counts = [runtime.active_count for runtime in runtimes]
    assert sum(counts) == messages
    assert max(counts) < PREFETCH_WINDOW
    return Prediction(messages=messages, queues=len(counts), empty_queues=counts.count(0))


async def wait_until_restored(pairing: Pairing) -> None:
    """Wait until a ping reached the primary."""
    done = asyncio.Event()
    pairing.on_event(lambda _: done.set(), {EventKind.RESTORED})
    await done.wait()


async def drain_with_pumps(
    primary: MessagingFactory, secondary: MessagingFactory, manager: NamespaceManager, pairing: Pairing, messages: int
) -> None:
    """Run the syphon's pumps until all messages are moved."""
    pumps = ManualDrain(primary, secondary, manager, [queue.path for queue in pairing.rotation.queues])
    pumps.start()
    while pumps.moved < messages:  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0.1)
    await pumps.close()


async def receive_all(factory: MessagingFactory) -> int:
    """Receive one message at a time until the queue is empty."""
    receiver = factory.create_message_receiver("orders", prefetch=0)
    received = 0
    while message := await receiver.receive(5):
        await receiver.complete(message)
        received += 1
    await receiver.close()
    return received
