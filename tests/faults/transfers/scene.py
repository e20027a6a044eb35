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

from tests.faults import management
from tests.faults.features.letter import ACTIVE, DEFERRED, Received
from tests.faults.features.lines import Desk
from tests.faults.features.operations import peek_all
from tests.faults.harness import drain_line
from tests.faults.line import Line, close, connected
from tests.faults.management import Counts
from tests.faults.transfers.ledger import TransferLedger
from tests.faults.transfers.leftovers import leftovers
from tests.faults.transfers.lines import PlaceLine, noted, source_of
from tests.faults.transfers.places import ON_THE_WAY, PLACES, QUEUES, furnish
from tests.faults.transfers.workload import TransferWorkload
from tests.ledger.messages import State
from twinbus.amqp.message import Message
from twinbus.amqp.types import Array, UInt

if TYPE_CHECKING:
    from tests.faults.server_process import Endpoint, ServerProcess
    from tests.faults.transfers.places import Place
    from tests.faults.workload import Workload
    from twinbus.amqp.events import Event

ARRIVE_S: Final = 20.0
"""By then all that is on its way has arrived, also if a step has to be tried again."""
LOOK_EVERY_S: Final = 0.1
AT_ONCE: Final = 50
NOTHING: Final = Counts(active=0, dead=0, scheduled=0, deferred=0)


class Transfers:
    """A scene for `harness`."""

    def __init__(self, seed: int) -> None:
        self.ledger = TransferLedger(random.Random(seed))
        self._problems: list[str] = []

    async def prepare(self, server: ServerProcess) -> None:
        """Topics and forwarding are not for clients to make yet: they are written into the catalogue."""
        await server.stop()
        furnish(server.data / "catalogue.db")
        await server.start()

    def clients(self, server: ServerProcess, rng: random.Random) -> Workload:
        return TransferWorkload(server, self.ledger, rng)

    async def reckon(self, server: ServerProcess, clients: Workload) -> list[str]:
        del clients
        await self._arrive(server.endpoint)
        await server.kill()
        await server.start()
        await self._arrive(server.endpoint)
        await asyncio.gather(*[self._empty(server.endpoint, place) for place in PLACES.values()])
        self.ledger.close()
        await server.stop()
        await server.start()
        await asyncio.gather(*[self._check_empty(server.endpoint, address) for address in (*PLACES, *ON_THE_WAY)])
        for queue in QUEUES:
            told = await management.counts(server.endpoint, queue)
            if told != NOTHING:
                self._problems.append(f"count: {queue} is empty and is said to hold {told}")
        await server.stop()
        return self._problems + leftovers(server.data / "stores")

    async def _arrive(self, endpoint: Endpoint) -> None:
        """Wait until nothing is on its way."""
        deadline = time.monotonic() + ARRIVE_S
        for address in ON_THE_WAY:
            while left := await self._peek(endpoint, address):
                if time.monotonic() > deadline:
                    self._problems.append(f"stuck: {len(left)} messages lie in {address}, and do not go on")
                    break
                await asyncio.sleep(LOOK_EVERY_S)

    async def _peek(self, endpoint: Endpoint, address: str) -> list[Received]:
        """What lies there; a store whose sync has failed is waited for."""
        deadline = time.monotonic() + ARRIVE_S
        while True:
            try:
                return await self._peek_once(endpoint, address)
            except OSError as failure:
                if "opened again" not in str(failure) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    async def _peek_once(self, endpoint: Endpoint, address: str) -> list[Received]:
        async with connected(DeskLine(self.ledger, address), endpoint) as line:
            line.desk.open()
            found = await peek_all(line.desk)
            await close(line)
        return found

    async def _check_empty(self, endpoint: Endpoint, address: str) -> None:
        if left := await self._peek(endpoint, address):
            self._problems.append(f"back: {len(left)} messages lie in {address}, which was empty")

    # --- taking everything out ----------------------------------------------------------------------------------------

    async def _empty(self, endpoint: Endpoint, place: Place) -> None:
        """All messages of a place are received and completed."""
        peeked = await self._peek(endpoint, place.address)
        states = collections.Counter(got.state for got in peeked)
        if place.address in QUEUES:
            told = await management.counts(endpoint, place.address)
            if (told.active, told.deferred) != (states[ACTIVE], states[DEFERRED]):
                self._problems.append(f"count: {place.address} is said to hold {told}, and peeked were {states}")
        sessions: list[str | None] = [None]
        if place.has_sessions:
            sessions = sorted({got.session for got in peeked}, key=str)
        taken = 0
        for session in sessions:
            some = [got for got in peeked if got.session == session or not place.has_sessions]
            taken += await self._receive_all(endpoint, place, session, some)
        if taken != len(peeked):
            self._problems.append(f"count: in {place.address} lay {states}, and {taken} messages were taken out")

    async def _receive_all(self, endpoint: Endpoint, place: Place, session: str | None, peeked: list[Received]) -> int:
        line = EmptyingLine(self.ledger, place, session)
        async with connected(line, endpoint):
            line.desk.open()

            async def is_empty() -> bool:
                return not any(got.state == ACTIVE for got in await peek_all(line.desk, session))

            await drain_line(line, is_empty)
            deferred = [got.sequence_number for got in peeked if got.state == DEFERRED]
            for at in range(0, len(deferred), AT_ONCE):
                await self._fetch(line, deferred[at : at + AT_ONCE], session)
            await close(line)
        return line.completed

    async def _fetch(self, line: EmptyingLine, sequence_numbers: list[int], session: str | None) -> None:
        """Ask for deferred messages by their numbers, and complete them."""
        of_session: dict[str, object] = {"session-id": session} if session is not None else {}
        arguments = {"sequence-numbers": Array(int, [*sequence_numbers]), "receiver-settle-mode": UInt(0)}
        answer = await line.desk.ask("com.microsoft:receive-by-sequence-number", arguments | of_session)
        found: list[dict[str, Any]] = answer.body["messages"] if answer.status == 200 else []
        for message in found:
            number = noted(self.ledger, line.address, Message(message["message"]), State.DEFERRED)
            if number is not None:
                home = line.place.home
                self.ledger.answered(home, number, self.ledger.receipt_of(home, number), State.GONE)
                line.completed += 1


class DeskLine(Line):
    """Only asks."""

    links: ClassVar = Desk.LINKS

    def __init__(self, ledger: TransferLedger, address: str) -> None:
        super().__init__(ledger, address)
        self.desk = Desk(self, address)

    def attach(self) -> None:
        self.desk.attach(self.peer.connection.begin_session())

    def react(self, event: Event) -> None:
        self.desk.react(event)


class EmptyingLine(PlaceLine):
    """Receives and completes all that comes, and can ask."""

    links: ClassVar = 1 + Desk.LINKS

    def __init__(self, ledger: TransferLedger, place: Place, session: str | None) -> None:
        super().__init__(ledger, place.address, session=session)
        self.desk = Desk(self, place.address)

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, source_of(self.address, self.session))
        self.desk.attach(session)

    def react(self, event: Event) -> None:
        if not self.desk.react(event):
            super().react(event)
