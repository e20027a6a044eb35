"""Workload: clients that use transactions, and senders and receivers of forwarding chains, through crashes.

Owns: the random choices of the clients. The checker checks the guarantees.
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
    from twinbus.amqp.codec.composite import Composite

MAX_ACTIONS: Final = 8
"""Maximum number of actions in a transaction."""
DISCONNECT_PROBABILITY: Final = 0.02
"""Probability of a disconnect between two steps of a transaction, or during its discharge."""
IMPATIENT_TIMEOUT_S: Final = 0.02
RESEND_PROBABILITY: Final = 0.3
SETTLEMENT_WEIGHTS: Final = {
    ActionKind.COMPLETE: 0.65,
    ActionKind.ABANDON: 0.15,
    ActionKind.DEAD_LETTER: 0.1,
    ActionKind.DEFER: 0.1,
}
"""Weights of the kinds of settlement in transactions."""


class TransferWorkload(Workload):
    """Clients of a run."""

    messages_max: ClassVar = 100

    def __init__(self, server: RestartableServer, checker: TransferChecker, rng: random.Random) -> None:
        super().__init__(server, checker, ENTRY_POINTS, rng)
        self._transfer_checker = checker
        self._entry_points = itertools.cycle(ENTRY_POINTS)
        self._resendable: list[tuple[int, bytes]] = []
        """Messages that were sent to entities with duplicate detection, with their payloads."""

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
        destination = DESTINATIONS[address]
        can_dead_letter = destination.state is State.ACTIVE and destination.entity in DEAD_LETTERING
        return DEAD_LETTERED if can_dead_letter and self._rng.random() < 0.1 else self._choose_outcome()

    # --- in transactions ----------------------------------------------------------------------------------------------

    async def _run_transactions(self) -> None:
        """Run some transactions on one entity, one after the other."""
        rng = self._rng
        client = TransactionClient(self._transfer_checker, rng.choice(TRANSACTION_ENTITIES))
        async with connect_client(client, await self._server.wait_until_serving()):
            if client.source is not None:
                client.source.keep_credit(rng.choice([1, 5, 20]))
            for _ in range(rng.randint(1, 15)):
                if not await self._make_transaction(client):
                    return
            if rng.random() < 0.5:
                await disconnect(client)

    async def _make_transaction(self, client: TransactionClient) -> bool:
        """Run a transaction; return False if the client disconnects, which rolls it back."""
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
            (kind,) = rng.choices(list(SETTLEMENT_WEIGHTS), list(SETTLEMENT_WEIGHTS.values()))
            client.settle(transaction, kind, is_presettled=rng.random() < 0.3)

    def _record_transactional_send(self, client: TransactionClient, transaction: Transaction) -> bytes:
        """Return a new message, or a repeated one of this transaction or of one with a known outcome."""
        rng, checker, entry = self._rng, self._transfer_checker, client.queue
        if entry in DUPLICATE_DETECTING and self._resendable and rng.random() < RESEND_PROBABILITY:
            number, payload = rng.choice(self._resendable[-200:])
            earlier = checker.sent_by[number].transaction
            if earlier is transaction or (earlier.is_discharged and earlier.is_done is not None):
                if earlier.is_done is False:
                    checker.transaction_sends(transaction, number)
                checker.resent(number)
                return payload
        number, payload = checker.record_send_to(entry, None, rng.choice([0, 100, 600]), self._choose_session(entry))
        checker.transaction_sends(transaction, number)
        if entry in DUPLICATE_DETECTING:
            self._resendable.append((number, payload))
        return payload
