"""The pumps of some backlog queues, as a task hosts them.

    async with pumping(primary, secondary, assignment, epoch, tally):
        ...

Owns: their beginning and end, the events they tell, and the journal that is kept of them. They are the very pumps of
the in-process syphon. Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.destination import Senders
from twinbus.client.pairing.events import EVERY_KIND, EventKind
from twinbus.client.pairing.pair_events import PairEvents
from twinbus.client.pairing.pump import Pump, PumpSettings
from twinbus.client.pairing.rewriting import LOCK_MS
from twinbus.client.pairing.wakeups import Wakeups
from twinbus.pipeline.syphon.tally import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import MessagingFactory
    from twinbus.client.clock import Clock
    from twinbus.client.events import Kind
    from twinbus.client.pairing.parcel import Parcel
    from twinbus.pipeline.syphon.assignment import Assignment
    from twinbus.pipeline.syphon.tally import Tally

LOOK_S: Final = 5.0


@contextlib.asynccontextmanager
async def pumping(
    primary: MessagingFactory, secondary: MessagingFactory, assignment: Assignment, epoch: int, tally: Tally
) -> AsyncIterator[list[Pump]]:
    """Drain within the block. At its end what is on its way is waited for, for a moment; the rest stays parked."""
    clock = primary.settings.clock
    events = _Counting(clock, tally, primary.address, secondary.address)
    events.listen(tally.hear, KINDS)
    settings = PumpSettings(
        secondary=secondary,
        sender_to=Senders(primary).to,
        wakeups=Wakeups(),
        epoch=epoch,
        poll_s=assignment.poll_s,
        send_timeout_s=primary.settings.operation_timeout_s,
        deduct=assignment.deduct,
        not_found_grace_s=assignment.not_found_grace_s,
        clock=clock,
        events=events,
    )
    async with primary, secondary, _journal(assignment.journal_dir, primary, secondary, events):
        pumps = [Pump(path, settings, assignment.locks_ms.get(path, LOCK_MS)) for path in assignment.queues]
        for pump in pumps:
            pump.start()
        try:
            yield pumps
        finally:
            await asyncio.gather(*[pump.close() for pump in pumps])


@contextlib.asynccontextmanager
async def _journal(
    folder: str | None, primary: MessagingFactory, secondary: MessagingFactory, events: PairEvents
) -> AsyncIterator[None]:
    """What becomes of each message is written down on this machine, as a pair does with `journal_dir`."""
    if folder is None:
        yield
        return
    from twinbus.client.journal import Journal  # noqa: PLC0415  # pyarrow is optional

    journal = Journal(folder, clock=primary.settings.clock)
    events.listen(journal.attach(primary).hear, EVERY_KIND)
    journal.attach(secondary)
    try:
        yield
    finally:
        await asyncio.shield(journal.close())


class _Counting(PairEvents):
    """Counts each message that is moved, and makes an event of it only where somebody wants one: it costs more."""

    def __init__(self, clock: Clock, tally: Tally, primary: str, secondary: str) -> None:
        super().__init__(clock, primary, secondary)
        self._wall_ms = clock.wall_ms
        self._tally = tally

    def wants(self, kind: Kind) -> bool:
        return kind is EventKind.MOVED or super().wants(kind)

    def emit_parcel(self, kind: EventKind, parcel: Parcel, backlog_queue: str, reason: str | None = None) -> None:
        if kind is EventKind.MOVED:
            self._tally.moved(backlog_queue, parcel.restored.path, self._wall_ms())
            if not super().wants(kind):
                return
        super().emit_parcel(kind, parcel, backlog_queue, reason)


async def ended(pumps: list[Pump]) -> str:
    """Wait until one of them has ended by itself, which it should not: its backlog queue."""
    while True:
        await asyncio.sleep(LOOK_S)
        for pump in pumps:
            if pump.has_ended:
                return pump.path
