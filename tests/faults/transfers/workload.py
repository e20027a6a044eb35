"""Clients that make transactions, and senders and receivers at the two ends of chains, whatever happens to the server.

Owns: the randomness of what they do. What is promised to them is judged by `ledger`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, ClassVar, Final

from tests.faults.line import close, connected
from tests.faults.transfers.ledger import What
from tests.faults.transfers.lines import BURIED, LetterLine, PlaceLine, TransactionLine
from tests.faults.transfers.places import BURYING, CHECKED, END, HEADS, PLACES, SESSIONS, TRANSACTED
from tests.faults.workload import BACKLOG_MAX, Workload
from tests.ledger.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.faults.server_process import ServerProcess
    from tests.faults.transfers.ledger import Transaction, TransferLedger
    from twinbus.amqp.composite import Composite

DEEDS: Final = 8
"""At most, in one transaction."""
VANISHES: Final = 0.02
"""How often, between any two steps of a transaction, or while its end is waited for."""
HURRY_S: Final = 0.02
RESENT: Final = 0.3
SETTLED: Final = {What.COMPLETE: 0.65, What.ABANDON: 0.15, What.DEAD_LETTER: 0.1, What.DEFER: 0.1}
"""How messages are settled in transactions, and how often so."""


class TransferWorkload(Workload):
    """All clients of a run."""

    messages_max: ClassVar = 100

    def __init__(self, server: ServerProcess, ledger: TransferLedger, rng: random.Random) -> None:
        super().__init__(server, ledger, HEADS, rng)
        self._book = ledger
        self._heads = itertools.cycle(HEADS)
        self._resendable: list[tuple[int, bytes]] = []
        """Messages with their payloads, where one that is sent again is known."""

    def works(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [*[self._send] * 3, *[self._receive] * 8, *[self._transact] * 6]

    # --- in no transaction --------------------------------------------------------------------------------------------

    def new_sender(self) -> LetterLine:
        return LetterLine(self._book, next(self._heads), self._compose)

    def _compose(self, line: LetterLine, filler_bytes: int) -> tuple[int, bytes]:
        return self._book.write_to(line.queue, line.order_key, filler_bytes, self._choose_session(line.queue))

    def _choose_session(self, head: str) -> str | None:
        if head in {"seats", "news"} or (head == "road" and self._rng.random() < 0.7):
            return f"session-{self._rng.randrange(SESSIONS)}"
        return None

    def new_receiver(self) -> PlaceLine:
        address = self._rng.choice(END if self._rng.random() < 0.5 else list(PLACES))
        return PlaceLine(self._book, address, lambda: self._choose_at(address))

    def _choose_at(self, address: str) -> Composite | None:
        place = PLACES[address]
        can_bury = place.state is State.ACTIVE and place.home in BURYING
        return BURIED if can_bury and self._rng.random() < 0.1 else self._choose()

    # --- in transactions ----------------------------------------------------------------------------------------------

    async def _transact(self) -> None:
        """Some transactions on one entity, one after the other."""
        rng = self._rng
        line = TransactionLine(self._book, rng.choice(TRANSACTED))
        async with connected(line, await self._server.serving()):
            if line.source is not None:
                line.source.keep_credit(rng.choice([1, 5, 20]))
            for _ in range(rng.randint(1, 15)):
                if not await self._make_transaction(line):
                    return
            if rng.random() < 0.5:
                await close(line)

    async def _make_transaction(self, line: TransactionLine) -> bool:
        """False if the client has vanished on the way, which rolls it back."""
        rng, transaction = self._rng, await line.declare()
        for _ in range(rng.randint(0, DEEDS)):
            if rng.random() < VANISHES:
                return False
            await self._do_something(line, transaction)
            if rng.random() < 0.2:
                await line.until_answered()
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0, 0.02))
        if rng.random() < VANISHES:
            line.control.detach()
            await line.until(lambda: False, patience_s=rng.uniform(0, 0.1))
            return False
        if rng.random() < VANISHES:
            line.patience_s = rng.uniform(0.0, HURRY_S)
        await line.discharge(transaction, fail=rng.random() < 0.25)
        return True

    async def _do_something(self, line: TransactionLine, transaction: Transaction) -> None:
        rng = self._rng
        sends = line.target is not None and len(self._book.waiting) < BACKLOG_MAX and rng.random() < 0.5
        if sends or line.source is None:
            if await line.until(line.can_send, patience_s=1.0):
                line.send(self._write(line, transaction))
        elif await line.until(lambda: line.held, patience_s=0.1):
            (what,) = rng.choices(list(SETTLED), list(SETTLED.values()))
            line.settle(transaction, what, forgets=rng.random() < 0.3)

    def _write(self, line: TransactionLine, transaction: Transaction) -> bytes:
        """A new message; or one that this transaction sent, or one that is over, where that is known."""
        rng, book, head = self._rng, self._book, line.queue
        if head in CHECKED and self._resendable and rng.random() < RESENT:
            number, payload = rng.choice(self._resendable[-200:])
            before = book.sent_by[number].transaction
            if before is transaction or (before.is_discharged and before.is_done is not None):
                if before.is_done is False:
                    book.sends(transaction, number)
                book.sent_again(number)
                return payload
        number, payload = book.write_to(head, None, rng.choice([0, 100, 600]), self._choose_session(head))
        book.sends(transaction, number)
        if head in CHECKED:
            self._resendable.append((number, payload))
        return payload
