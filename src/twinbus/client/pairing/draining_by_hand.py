"""Pumps without a pairing: for those who bring parked messages back by hand.

Owns: the pumps of some backlog queues, and what they have moved. They are the very pumps of the syphon.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.client.pairing.destination import Senders
from twinbus.client.pairing.events import EventKind, Events
from twinbus.client.pairing.pump import Pump, PumpSettings
from twinbus.client.pairing.telling import Telling
from twinbus.client.pairing.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing.events import PairingEvent

POLL_S: float = 900.0


class DrainingByHand:
    """The pumps of some backlog queues."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        manager: NamespaceManager,
        paths: Sequence[str],
        *,
        deduct: bool = False,
    ) -> None:
        """`start` begins."""
        self.moved = 0
        self.dead_lettered = 0
        self._manager = manager
        events, clock = Events(), primary.settings.clock
        events.listen(self._hear)
        settings = PumpSettings(
            secondary=secondary,
            sender_to=Senders(primary).to,
            wakeups=Wakeups(),
            epoch=clock.wall_ms(),
            poll_s=POLL_S,
            send_timeout_s=primary.settings.operation_timeout_s,
            deduct=deduct,
            clock=clock,
            telling=Telling(events, clock),
        )
        self._pumps = [Pump(path, settings) for path in paths]

    def start(self) -> None:
        """Drain from now on."""
        for pump in self._pumps:
            pump.start()

    async def close(self) -> None:
        """Stop."""
        await asyncio.gather(*[pump.close() for pump in self._pumps])

    async def left(self) -> int:
        """Messages that are still in these queues."""
        runtimes = [await self._manager.get_queue_runtime(pump.path) for pump in self._pumps]
        return sum(one.active_count + one.deferred_count for one in runtimes)

    def _hear(self, event: PairingEvent) -> None:
        self.moved += event.kind is EventKind.MOVED
        self.dead_lettered += event.kind is EventKind.DEAD_LETTERED
