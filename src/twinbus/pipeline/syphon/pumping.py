"""The pumps of some backlog queues, as a task hosts them.

    async with pumping(primary, secondary, assignment, epoch, tally):
        ...

Owns: their beginning and end, the events they tell, and the journal that is kept of them. They are the very pumps of
the in-process syphon. Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from twinbus.client.pairing.destination import Senders
from twinbus.client.pairing.events import Events
from twinbus.client.pairing.pump import Pump, PumpSettings
from twinbus.client.pairing.telling import Telling
from twinbus.pipeline.syphon.tally import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import MessagingFactory
    from twinbus.pipeline.syphon.assignment import Assignment
    from twinbus.pipeline.syphon.tally import Tally


@contextlib.asynccontextmanager
async def pumping(
    primary: MessagingFactory, secondary: MessagingFactory, assignment: Assignment, epoch: int, tally: Tally
) -> AsyncIterator[None]:
    """Drain within the block. At its end what is on its way is waited for, for a moment; the rest stays parked."""
    clock = primary.settings.clock
    events = Events()
    events.listen(tally.hear, KINDS)
    settings = PumpSettings(
        secondary=secondary,
        sender_to=Senders(primary).to,
        wait=asyncio.sleep,
        epoch=epoch,
        poll_s=assignment.poll_s,
        send_timeout_s=primary.settings.operation_timeout_s,
        deduct=assignment.deduct,
        clock=clock,
        telling=Telling(events, clock),
    )
    async with primary, secondary, _journal(assignment.journal_dir, primary, secondary, events):
        pumps = [Pump(path, settings) for path in assignment.queues]
        for pump in pumps:
            pump.start()
        try:
            yield
        finally:
            await asyncio.gather(*[pump.close() for pump in pumps])


@contextlib.asynccontextmanager
async def _journal(
    folder: str | None, primary: MessagingFactory, secondary: MessagingFactory, events: Events
) -> AsyncIterator[None]:
    """What becomes of each message is written down on this machine, as a pair does with `journal_dir`."""
    if folder is None:
        yield
        return
    from twinbus.client.journal import Journal  # noqa: PLC0415  # pyarrow is optional

    journal = Journal(folder, clock=primary.settings.clock)
    events.listen(journal.attach(primary).event)
    journal.attach(secondary)
    try:
        yield
    finally:
        await asyncio.shield(journal.close())
