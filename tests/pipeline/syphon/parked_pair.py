"""A pair of servers in separate processes, with messages parked in the secondary as after an outage.

    async with run_parked_pair(tmp_path) as pair:
        await pair.park([parked_payload(f"order {number}") for number in range(100)])

Owns the servers and the queues, and reads the messages of both namespaces for a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.server_pair import connect_manager, receive_all, run_server_pair
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing.backlog import rotation
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.model.queue import QueueDescription
from twinbus.pipeline.syphon import Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.support.server_process import ServerProcess

PRIMARY: Final = "contoso"
BACKLOG_QUEUES: Final = 3
BATCH_SIZE: Final = 500
ORDERS: Final = "orders"
SESSIONS: Final = "orders-in-sessions"
DEDUPLICATED: Final = "orders-once"
"""A queue with duplicate detection."""
QUEUES: Final = {
    ORDERS: QueueDescription(),
    SESSIONS: QueueDescription(requires_session=True),
    DEDUPLICATED: QueueDescription(requires_duplicate_detection=True),
}


def parked_payload(text: str, path: str = ORDERS, session_id: str | None = None) -> bytes:
    """Return a message as a sender parks it."""
    message = BrokeredMessage(text, message_id=text, session_id=session_id)
    return park(message.encode(0), 0, path, is_possible_duplicate=False)


class ParkedPair:
    """The primary and the secondary, with their queues."""

    def __init__(self, primary: ServerProcess, secondary: ServerProcess) -> None:
        self.primary = primary
        self.secondary = secondary
        self.backlog_queues = [rotation.backlog_queue_path(PRIMARY, index) for index in range(BACKLOG_QUEUES)]

    @property
    def pair(self) -> Pair:
        strings = (self.primary.connection_string, self.secondary.connection_string)
        ca_files = [Path(self.primary.ca_file), Path(self.secondary.ca_file)]
        return Pair.of(*strings, self.secondary.admin_connection_string, name=PRIMARY, ca_files=ca_files)

    async def make_queues(self) -> None:
        async with (
            connect_manager(self.primary) as primary_manager,
            connect_manager(self.secondary) as secondary_manager,
        ):
            for path, description in QUEUES.items():
                await primary_manager.create_queue(path, description)
            for path in self.backlog_queues:
                await secondary_manager.create_queue(path, rotation.BACKLOG_QUEUE_DESCRIPTION)

    async def park(self, messages: Iterable[bytes], queues: Iterable[str] | None = None) -> None:
        """Send messages to the backlog queues in turn (default: all backlog queues)."""
        async with MessagingFactory.from_connection_string(self.secondary.connection_string) as factory:
            senders = [factory.create_message_sender(path) for path in queues or self.backlog_queues]
            sends = zip(itertools.cycle(senders), messages, strict=False)
            while batch := list(itertools.islice(sends, BATCH_SIZE)):
                await asyncio.gather(*[sender.deliver(message) for sender, message in batch])

    async def arrived(self, count: int, path: str = ORDERS) -> list[str]:
        """Receive `count` messages from the primary, and return their bodies in order."""
        return [message.text for message in await receive_all(self.primary, count, path)]

    async def arrived_in_session(self, session_id: str, count: int) -> list[str]:
        """Receive `count` messages of a session, and return their bodies in order."""
        texts: list[str] = []
        async with (
            MessagingFactory.from_connection_string(self.primary.connection_string) as factory,
            await factory.create_queue_client(SESSIONS).accept_session(session_id) as session,
        ):
            while len(texts) < count and (batch := await session.receive_batch(count, 5)):
                texts += [message.text for message in batch]
        return texts

    def parked_count(self) -> int:
        """Return the number of messages in the backlog queues."""
        return sum(self.secondary.message_counts(path)[0] for path in self.backlog_queues)

    def dead_letter_count(self) -> int:
        """Return the number of messages in the dead-letter queues of the backlog queues."""
        return sum(self.secondary.message_counts(path)[1] for path in self.backlog_queues)


@contextlib.asynccontextmanager
async def run_parked_pair(folder: Path) -> AsyncIterator[ParkedPair]:
    """Run two servers, and create their queues."""
    async with run_server_pair(folder, queue=None) as servers:
        pair = ParkedPair(*servers)
        await pair.make_queues()
        yield pair
