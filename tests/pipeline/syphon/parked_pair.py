"""A pair of servers in processes of their own, with messages parked in the secondary as an outage leaves them.

    async with scene(tmp_path) as here:
        await here.park([order(number) for number in range(100)])

Owns: the servers, the queues, and how a test looks at both ends.
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
"""Detects duplicates."""
QUEUES: Final = {
    ORDERS: QueueDescription(),
    SESSIONS: QueueDescription(requires_session=True),
    DEDUPLICATED: QueueDescription(requires_duplicate_detection=True),
}


def parked_payload(text: str, path: str = ORDERS, session_id: str | None = None) -> bytes:
    """A message as a sender parks it."""
    message = BrokeredMessage(text, message_id=text, session_id=session_id)
    return park(message.encode(0), 0, path, is_possible_duplicate=False)


class ParkedPair:
    """Both namespaces."""

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
        async with connect_manager(self.primary) as there, connect_manager(self.secondary) as here:
            for path, description in QUEUES.items():
                await there.create_queue(path, description)
            for path in self.backlog_queues:
                await here.create_queue(path, rotation.BACKLOG_QUEUE_DESCRIPTION)

    async def park(self, messages: Iterable[bytes], queues: Iterable[str] | None = None) -> None:
        """Into all backlog queues in turn, or into those given."""
        async with MessagingFactory.from_connection_string(self.secondary.connection_string) as factory:
            senders = [factory.create_message_sender(path) for path in queues or self.backlog_queues]
            sends = zip(itertools.cycle(senders), messages, strict=False)
            while some := list(itertools.islice(sends, BATCH_SIZE)):
                await asyncio.gather(*[sender.deliver(message) for sender, message in some])

    async def arrived(self, count: int, path: str = ORDERS) -> list[str]:
        """Bodies, in the order in which they are received."""
        return [message.text for message in await receive_all(self.primary, count, path)]

    async def arrived_in_session(self, session_id: str, count: int) -> list[str]:
        """The same of a session."""
        found: list[str] = []
        async with (
            MessagingFactory.from_connection_string(self.primary.connection_string) as factory,
            await factory.create_queue_client(SESSIONS).accept_session(session_id) as session,
        ):
            while len(found) < count and (some := await session.receive_batch(count, 5)):
                found += [message.text for message in some]
        return found

    def parked_count(self) -> int:
        """Messages in the backlog queues."""
        return sum(self.secondary.message_counts(path)[0] for path in self.backlog_queues)

    def dead_letter_count(self) -> int:
        """Messages in their dead-letter queues."""
        return sum(self.secondary.message_counts(path)[1] for path in self.backlog_queues)


@contextlib.asynccontextmanager
async def run_parked_pair(folder: Path) -> AsyncIterator[ParkedPair]:
    """Two servers with their queues."""
    async with run_server_pair(folder, queue=None) as both:
        here = ParkedPair(*both)
        await here.make_queues()
        yield here
