"""Clients that make transactions, and senders and receivers at the two ends of chains, whatever happens to the server.

Owns: the randomness of what they do. What is promised to them is judged by `ledger`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, ClassVar, Final

from tests.campaigns.clients import connect_client, disconnect
from tests.campaigns.crashes.transfers.checker import ActionKind
from tests.campaigns.crashes.transfers.clients import (
    DEAD_LETTERED,
    ComposedSenderClient,
    DestinationReceiverClient,
    TransactionClient,
)
from tests.campaigns.crashes.transfers.topology import (
    CHAIN_END,
    DEAD_LETTERING,
    DESTINATIONS,
    DUPLICATE_DETECTING,
    ENTRY_POINTS,
    SESSIONS,
    TRANSACTION_ENTITIES,
)
from tests.campaigns.crashes.workload import BACKLOG_MAX, Workload
from tests.support.delivery_checker.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.campaigns.crashes.transfers.checker import Transaction, TransferChecker
    from tests.campaigns.restartable_server import RestartableServer
    from twinbus.amqp.composite import Composite

MAX_ACTIONS: Final = 8
"""At most, in one transaction."""
DISCONNECT_PROBABILITY: Final = 0.02
"""How often, between any two steps of a transaction, or while its end is waited for."""
IMPATIENT_TIMEOUT_S: Final = 0.02
RESEND_PROBABILITY: Final = 0.3
SETTLEMENT_WEIGHTS: Final = {
    ActionKind.COMPLETE: 0.65,
    ActionKind.ABANDON: 0.15,
    ActionKind.DEAD_LETTER: 0.1,
    ActionKind.DEFER: 0.1,
}
"""How messages are settled in transactions, and how often so."""


class TransferWorkload(Workload):
    """All clients of a run."""

    messages_max: ClassVar = 100

    def __init__(self, server: RestartableServer, checker: TransferChecker, rng: random.Random) -> None:
        super().__init__(server, checker, ENTRY_POINTS, rng)
        self._transfer_checker = checker
        self._entry_points = itertools.cycle(ENTRY_POINTS)
        self._resendable: list[tuple[int, bytes]] = []
        """Messages with their payloads, where one that is sent again is known."""

    def client_loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [*[self._send] * 3, *[self._receive] * 8, *[self._run_transactions] * 6]

    # --- in no transaction --------------------------------------------------------------------------------------------

    def new_sender(self) -> ComposedSenderClient:
        return ComposedSenderClient(self._transfer_checker, next(self._entry_points), self._compose)

    def _compose(self, client: ComposedSenderClient, filler_bytes: int) -> tuple[int, bytes]:
        return self._transfer_checker.record_send_to(
            client.queue, client.order_key, filler_bytes, self._choose_session(client.queue)
        )

    def _choose_session(self, entry: str) -> str | None:
        if entry in {"seats", "news"} or (entry == "road" and self._rng.random() < 0.7):
            return f"session-{self._rng.randrange(SESSIONS)}"
        return None

    def new_receiver(self) -> DestinationReceiverClient:
        address = self._rng.choice(CHAIN_END if self._rng.random() < 0.5 else list(DESTINATIONS))
        return DestinationReceiverClient(self._transfer_checker, address, lambda: self._outcome_chooser(address))

    def _outcome_chooser(self, address: str) -> Composite | None:
        place = DESTINATIONS[address]
        can_bury = place.state is State.ACTIVE and place.entity in DEAD_LETTERING
        return DEAD_LETTERED if can_bury and self._rng.random() < 0.1 else self._choose_outcome()

    # --- in transactions ----------------------------------------------------------------------------------------------

    async def _run_transactions(self) -> None:
        """Some transactions on one entity, one after the other."""
        rng = self._rng
        line = TransactionClient(self._transfer_checker, rng.choice(TRANSACTION_ENTITIES))
        async with connect_client(line, await self._server.wait_until_serving()):
            if line.source is not None:
                line.source.keep_credit(rng.choice([1, 5, 20]))
            for _ in range(rng.randint(1, 15)):
                if not await self._make_transaction(line):
                    return
            if rng.random() < 0.5:
                await disconnect(line)

    async def _make_transaction(self, client: TransactionClient) -> bool:
        """False if the client has vanished on the way, which rolls it back."""
        rng, transaction = self._rng, await client.declare()
        for _ in range(rng.randint(0, MAX_ACTIONS)):
            if rng.random() < DISCONNECT_PROBABILITY:
                return False
            await self._add_action(client, transaction)
            if rng.random() < 0.2:
                await client.wait_for_responses()
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0, 0.02))
        if rng.random() < DISCONNECT_PROBABILITY:
            client.control.detach()
            await client.wait_until(lambda: False, timeout_s=rng.uniform(0, 0.1))
            return False
        if rng.random() < DISCONNECT_PROBABILITY:
            client.timeout_s = rng.uniform(0.0, IMPATIENT_TIMEOUT_S)
        await client.discharge(transaction, fail=rng.random() < 0.25)
        return True

    async def _add_action(self, client: TransactionClient, transaction: Transaction) -> None:
        rng = self._rng
        sends = client.target is not None and len(self._transfer_checker.pending) < BACKLOG_MAX and rng.random() < 0.5
        if sends or client.source is None:
            if await client.wait_until(client.can_send, timeout_s=1.0):
                client.send(self._record_transactional_send(client, transaction))
        elif await client.wait_until(lambda: client.locked_messages, timeout_s=0.1):
            (what,) = rng.choices(list(SETTLEMENT_WEIGHTS), list(SETTLEMENT_WEIGHTS.values()))
            client.settle(transaction, what, is_presettled=rng.random() < 0.3)

    def _record_transactional_send(self, client: TransactionClient, transaction: Transaction) -> bytes:
        """A new message; or one that this transaction sent, or one that is over, where that is known."""
        rng, book, head = self._rng, self._transfer_checker, client.queue
        if head in DUPLICATE_DETECTING and self._resendable and rng.random() < RESEND_PROBABILITY:
            number, payload = rng.choice(self._resendable[-200:])
            before = book.sent_by[number].transaction
            if before is transaction or (before.is_discharged and before.is_done is not None):
                if before.is_done is False:
                    book.transaction_sends(transaction, number)
                book.resent(number)
                return payload
        number, payload = book.record_send_to(head, None, rng.choice([0, 100, 600]), self._choose_session(head))
        book.transaction_sends(transaction, number)
        if head in DUPLICATE_DETECTING:
            self._resendable.append((number, payload))
        return payload
