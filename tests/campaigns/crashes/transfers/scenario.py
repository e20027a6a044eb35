"""Scenario with forwarding, topics and transactions, their clients, and the final checks.

    report = await run_campaign(plan, folder, scenario=TransferScenario(plan.seed))

At the end, without clients, all messages arrive at their destinations. Then all messages are peeked and received
(session by session if there are sessions, deferred ones by sequence number); both must agree with the counts of the
queues. After that the stores must be empty: no messages, and no shared bodies.

Owns: the order of these steps. The guarantees are in `checker`, the entities in `topology`.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.campaigns import management
from tests.campaigns.clients import CampaignClient, connect_client, disconnect
from tests.campaigns.crashes.campaign import drain_client
from tests.campaigns.crashes.features.clients import ManagementLinks
from tests.campaigns.crashes.features.management_operations import peek_all
from tests.campaigns.crashes.features.messages import ACTIVE, DEFERRED, ReceivedMessage
from tests.campaigns.crashes.transfers.checker import TransferChecker
from tests.campaigns.crashes.transfers.clients import DestinationReceiverClient, record_receipt, source_of
from tests.campaigns.crashes.transfers.stored_records import remaining_records
from tests.campaigns.crashes.transfers.topology import DESTINATIONS, FORWARDING_ENTITIES, QUEUES, create_entities
from tests.campaigns.crashes.transfers.workload import TransferWorkload
from tests.campaigns.management import MessageCounts
from tests.support.delivery_checker.messages import State
from twinbus.amqp.message import Message
from twinbus.amqp.types import Array, UInt

if TYPE_CHECKING:
    from tests.campaigns.crashes.transfers.topology import Destination
    from tests.campaigns.crashes.workload import Workload
    from tests.campaigns.restartable_server import Endpoint, RestartableServer
    from twinbus.amqp.events import Event

ARRIVAL_TIMEOUT_S: Final = 20.0
"""Time limit for the arrival of all messages, including retries."""
POLL_INTERVAL_S: Final = 0.1
BATCH_SIZE: Final = 50
NO_MESSAGES: Final = MessageCounts(active=0, dead_lettered=0, scheduled=0, deferred=0)


class TransferScenario:
    """Scenario with forwarding, topics and transactions."""

    def __init__(self, seed: int) -> None:
        self.checker = TransferChecker(random.Random(seed))
        self._problems: list[str] = []

    async def prepare(self, server: RestartableServer) -> None:
        """Write the entities into the catalogue of the stopped server, which sets their stores."""
        await server.stop()
        create_entities(server.data / "catalogue.db")
        await server.start()

    def start_clients(self, server: RestartableServer, rng: random.Random) -> Workload:
        return TransferWorkload(server, self.checker, rng)

    async def verify(self, server: RestartableServer, clients: Workload) -> list[str]:
        del clients
        await self._wait_for_arrival(server.endpoint)
        await server.kill()
        await server.start()
        await self._wait_for_arrival(server.endpoint)
        await asyncio.gather(*[self._drain(server.endpoint, destination) for destination in DESTINATIONS.values()])
        self.checker.finish()
        await server.stop()
        await server.start()
        await asyncio.gather(
            *[self._check_empty(server.endpoint, address) for address in (*DESTINATIONS, *FORWARDING_ENTITIES)]
        )
        for queue in QUEUES:
            reported = await management.message_counts(server.endpoint, queue)
            if reported != NO_MESSAGES:
                self._problems.append(f"count: {queue} is empty and is said to hold {reported}")
        await server.stop()
        return self._problems + remaining_records(server.data / "stores")

    async def _wait_for_arrival(self, endpoint: Endpoint) -> None:
        """Wait until no message is being forwarded."""
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        for address in FORWARDING_ENTITIES:
            while left := await self._peek(endpoint, address):
                if time.monotonic() > deadline:
                    self._problems.append(f"stuck: {len(left)} messages lie in {address}, and do not go on")
                    break
                await asyncio.sleep(POLL_INTERVAL_S)

    async def _peek(self, endpoint: Endpoint, address: str) -> list[ReceivedMessage]:
        """Peek all messages; wait for a store that is being reopened after a failed sync."""
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while True:
            try:
                return await self._peek_once(endpoint, address)
            except OSError as failure:
                if "reopened" not in str(failure) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _peek_once(self, endpoint: Endpoint, address: str) -> list[ReceivedMessage]:
        async with connect_client(ManagementClient(self.checker, address), endpoint) as client:
            client.management.grant_credit()
            peeked = await peek_all(client.management)
            await disconnect(client)
        return peeked

    async def _check_empty(self, endpoint: Endpoint, address: str) -> None:
        if left := await self._peek(endpoint, address):
            self._problems.append(f"back: {len(left)} messages lie in {address}, which was empty")

    # --- removing all messages ----------------------------------------------------------------------------------------

    async def _drain(self, endpoint: Endpoint, destination: Destination) -> None:
        """Receive and complete all messages of a destination."""
        peeked = await self._peek(endpoint, destination.address)
        states = collections.Counter(message.state for message in peeked)
        if destination.address in QUEUES:
            reported = await management.message_counts(endpoint, destination.address)
            if (reported.active, reported.deferred) != (states[ACTIVE], states[DEFERRED]):
                self._problems.append(
                    f"count: {destination.address} is said to hold {reported}, and peeked were {states}"
                )
        sessions: list[str | None] = [None]
        if destination.has_sessions:
            sessions = sorted({message.session for message in peeked}, key=str)
        removed = 0
        for session in sessions:
            some = [message for message in peeked if message.session == session or not destination.has_sessions]
            removed += await self._receive_all(endpoint, destination, session, some)
        if removed != len(peeked):
            self._problems.append(
                f"count: in {destination.address} lay {states}, and {removed} messages were taken out"
            )

    async def _receive_all(
        self, endpoint: Endpoint, destination: Destination, session: str | None, peeked: list[ReceivedMessage]
    ) -> int:
        client = DrainingClient(self.checker, destination, session)
        async with connect_client(client, endpoint):
            client.management.grant_credit()

            async def is_empty() -> bool:
                return not any(message.state == ACTIVE for message in await peek_all(client.management, session))

            await drain_client(client, is_empty)
            deferred = [message.sequence_number for message in peeked if message.state == DEFERRED]
            for start in range(0, len(deferred), BATCH_SIZE):
                await self._receive_deferred(client, deferred[start : start + BATCH_SIZE], session)
            await disconnect(client)
        return client.completed

    async def _receive_deferred(self, client: DrainingClient, sequence_numbers: list[int], session: str | None) -> None:
        """Receive and delete deferred messages by their sequence numbers."""
        session_arguments: dict[str, object] = {"session-id": session} if session is not None else {}
        arguments = {"sequence-numbers": Array(int, [*sequence_numbers]), "receiver-settle-mode": UInt(0)}
        response = await client.management.request(
            "com.microsoft:receive-by-sequence-number", arguments | session_arguments
        )
        messages: list[dict[str, Any]] = response.body["messages"] if response.status == 200 else []
        for message in messages:
            number = record_receipt(self.checker, client.address, Message(message["message"]), State.DEFERRED)
            if number is not None:
                entity = client.destination.entity
                self.checker.settlement_confirmed(
                    entity, number, self.checker.receipt_count_of(entity, number), State.COMPLETED
                )
                client.completed += 1


class ManagementClient(CampaignClient):
    """Sends management requests only."""

    link_count: ClassVar = ManagementLinks.LINK_COUNT

    def __init__(self, checker: TransferChecker, address: str) -> None:
        super().__init__(checker, address)
        self.management = ManagementLinks(self, address)

    def attach(self) -> None:
        self.management.attach(self.peer.connection.begin_session())

    def handle_event(self, event: Event) -> None:
        self.management.handle_event(event)


class DrainingClient(DestinationReceiverClient):
    """Receives and completes messages, and sends management requests."""

    link_count: ClassVar = 1 + ManagementLinks.LINK_COUNT

    def __init__(self, checker: TransferChecker, destination: Destination, session: str | None) -> None:
        super().__init__(checker, destination.address, session=session)
        self.management = ManagementLinks(self, destination.address)

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, source_of(self.address, self.session))
        self.management.attach(session)

    def handle_event(self, event: Event) -> None:
        if not self.management.handle_event(event):
            super().handle_event(event)
