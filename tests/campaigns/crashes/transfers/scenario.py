"""Entities that forward, copy and are used in transactions, their clients, and the reckoning of what is left.

    report = await endure(plan, folder, scene=Transfers(plan.seed))

At the end, with nobody at work, all that is on its way arrives. Then everything is looked at in two ways, which must
agree: it is peeked, and it is taken out: received, session by session where there are sessions, and asked for by its
number, what is deferred. What queues tell of themselves must be the same. When nothing is left to be received, the
stores must be empty, too: no message, and no body that several had.

Owns: that order of things. The promises are in `ledger`, the entities in `places`.
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
"""By then all that is on its way has arrived, also if a step has to be tried again."""
POLL_INTERVAL_S: Final = 0.1
BATCH_SIZE: Final = 50
NO_MESSAGES: Final = MessageCounts(active=0, dead_lettered=0, scheduled=0, deferred=0)


class TransferScenario:
    """A scene for `harness`."""

    def __init__(self, seed: int) -> None:
        self.checker = TransferChecker(random.Random(seed))
        self._problems: list[str] = []

    async def prepare(self, server: RestartableServer) -> None:
        """Topics and forwarding are not for clients to make yet: they are written into the catalogue."""
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
        await asyncio.gather(*[self._drain(server.endpoint, place) for place in DESTINATIONS.values()])
        self.checker.finish()
        await server.stop()
        await server.start()
        await asyncio.gather(
            *[self._check_empty(server.endpoint, address) for address in (*DESTINATIONS, *FORWARDING_ENTITIES)]
        )
        for queue in QUEUES:
            told = await management.message_counts(server.endpoint, queue)
            if told != NO_MESSAGES:
                self._problems.append(f"count: {queue} is empty and is said to hold {told}")
        await server.stop()
        return self._problems + remaining_records(server.data / "stores")

    async def _wait_for_arrival(self, endpoint: Endpoint) -> None:
        """Wait until nothing is on its way."""
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        for address in FORWARDING_ENTITIES:
            while left := await self._peek(endpoint, address):
                if time.monotonic() > deadline:
                    self._problems.append(f"stuck: {len(left)} messages lie in {address}, and do not go on")
                    break
                await asyncio.sleep(POLL_INTERVAL_S)

    async def _peek(self, endpoint: Endpoint, address: str) -> list[ReceivedMessage]:
        """What lies there; a store whose sync has failed is waited for."""
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while True:
            try:
                return await self._peek_once(endpoint, address)
            except OSError as failure:
                if "opened again" not in str(failure) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _peek_once(self, endpoint: Endpoint, address: str) -> list[ReceivedMessage]:
        async with connect_client(ManagementClient(self.checker, address), endpoint) as line:
            line.management.grant_credit()
            found = await peek_all(line.management)
            await disconnect(line)
        return found

    async def _check_empty(self, endpoint: Endpoint, address: str) -> None:
        if left := await self._peek(endpoint, address):
            self._problems.append(f"back: {len(left)} messages lie in {address}, which was empty")

    # --- taking everything out ----------------------------------------------------------------------------------------

    async def _drain(self, endpoint: Endpoint, destination: Destination) -> None:
        """All messages of a place are received and completed."""
        peeked = await self._peek(endpoint, destination.address)
        states = collections.Counter(got.state for got in peeked)
        if destination.address in QUEUES:
            told = await management.message_counts(endpoint, destination.address)
            if (told.active, told.deferred) != (states[ACTIVE], states[DEFERRED]):
                self._problems.append(f"count: {destination.address} is said to hold {told}, and peeked were {states}")
        sessions: list[str | None] = [None]
        if destination.has_sessions:
            sessions = sorted({got.session for got in peeked}, key=str)
        taken = 0
        for session in sessions:
            some = [got for got in peeked if got.session == session or not destination.has_sessions]
            taken += await self._receive_all(endpoint, destination, session, some)
        if taken != len(peeked):
            self._problems.append(f"count: in {destination.address} lay {states}, and {taken} messages were taken out")

    async def _receive_all(
        self, endpoint: Endpoint, destination: Destination, session: str | None, peeked: list[ReceivedMessage]
    ) -> int:
        line = DrainingClient(self.checker, destination, session)
        async with connect_client(line, endpoint):
            line.management.grant_credit()

            async def is_empty() -> bool:
                return not any(got.state == ACTIVE for got in await peek_all(line.management, session))

            await drain_client(line, is_empty)
            deferred = [got.sequence_number for got in peeked if got.state == DEFERRED]
            for at in range(0, len(deferred), BATCH_SIZE):
                await self._receive_deferred(line, deferred[at : at + BATCH_SIZE], session)
            await disconnect(line)
        return line.completed

    async def _receive_deferred(self, client: DrainingClient, sequence_numbers: list[int], session: str | None) -> None:
        """Ask for deferred messages by their numbers, and complete them."""
        of_session: dict[str, object] = {"session-id": session} if session is not None else {}
        arguments = {"sequence-numbers": Array(int, [*sequence_numbers]), "receiver-settle-mode": UInt(0)}
        answer = await client.management.request("com.microsoft:receive-by-sequence-number", arguments | of_session)
        found: list[dict[str, Any]] = answer.body["messages"] if answer.status == 200 else []
        for message in found:
            number = record_receipt(self.checker, client.address, Message(message["message"]), State.DEFERRED)
            if number is not None:
                home = client.destination.entity
                self.checker.settlement_confirmed(
                    home, number, self.checker.receipt_count_of(home, number), State.COMPLETED
                )
                client.completed += 1


class ManagementClient(CampaignClient):
    """Only asks."""

    link_count: ClassVar = ManagementLinks.LINK_COUNT

    def __init__(self, checker: TransferChecker, address: str) -> None:
        super().__init__(checker, address)
        self.management = ManagementLinks(self, address)

    def attach(self) -> None:
        self.management.attach(self.peer.connection.begin_session())

    def handle_event(self, event: Event) -> None:
        self.management.handle_event(event)


class DrainingClient(DestinationReceiverClient):
    """Receives and completes all that comes, and can ask."""

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
