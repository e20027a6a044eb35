"""The syphon: brings parked messages back to the primary. One pump for each backlog queue.

Owns: the pumps and the senders they share, and, in an application that hosts it, that the two factories end together
(R075 to R079).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.client.pairing.errors import PairedMessagingFactoryError
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.syphon.destination import PrimarySenders
from twinbus.client.pairing.syphon.pump import Pump, PumpSettings
from twinbus.client.settings import FactoryState
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.observe.events import PairingEvent
    from twinbus.client.pairing.pairing import Pairing


class Syphon:
    """Of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """`start` begins."""
        self._pairing = pairing
        options, clock = pairing.options, pairing.primary.settings.clock
        settings = PumpSettings(
            secondary=pairing.secondary,
            sender_to=PrimarySenders(pairing.primary).sender_to,
            wakeups=pairing.wakeups,
            epoch=clock.wall_ms(),
            poll_s=duration_s(options.syphon_poll),
            send_timeout_s=pairing.primary.settings.operation_timeout_s,
            deduct_parked_time=options.deduct_parked_time,
            not_found_grace_s=duration_s(options.not_found_grace),
            clock=clock,
            events=pairing.event_publisher,
        )
        self.pumps = [Pump(queue.path, settings, queue.lock_ms) for queue in pairing.rotation.queues]
        self._coordination = FactoryCoordination(pairing)
        self._unsubscribe = pairing.on_event(self._on_event, {EventKind.FAILED_OVER})

    def start(self) -> None:
        """Drain from now on."""
        for pump in self.pumps:
            pump.start()
        self._coordination.start()

    async def close(self) -> None:
        """Stop."""
        self._unsubscribe()
        self._coordination.close()
        await asyncio.gather(*[pump.close() for pump in self.pumps])

    def _on_event(self, event: PairingEvent) -> None:
        if event.path is not None:
            self._stop_receiving(event.path)

    def _stop_receiving(self, path: str) -> None:
        """Leave messages in the backlog while there is no connection to the primary.

        A pump would receive them as they are parked, find that out, and give them back: each is charged again when it
        comes again. Where a single entity is unavailable, the pumps go on for the others.
        """
        error = self._pairing.health_of(path).failure
        if isinstance(error, ConnectionFailed | ConnectionLost):
            for pump in self.pumps:
                pump.on_primary_lost(path, error)


class FactoryCoordination:
    """The watch over both factories of a pair: they end together, in an application that hosts the syphon.

    When one is closed or faults while the other is neither, the other has a grace of 5 seconds to be closed, too; else
    it is faulted, with an error that names both.
    """

    def __init__(self, pairing: Pairing) -> None:
        """`start` begins."""
        self._pairing = pairing
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch from now on."""
        primary, secondary = self._pairing.primary, self._pairing.secondary
        self._tasks = [
            asyncio.ensure_future(self._watch(primary, secondary)),
            asyncio.ensure_future(self._watch(secondary, primary)),
        ]

    def close(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self, factory: MessagingFactory, partner: MessagingFactory) -> None:
        """Fault `partner` if it outlives `one` for too long."""
        await factory.ended.wait()
        options = self._pairing.options
        has_faulted = factory.state is FactoryState.FAULTED
        grace_s = duration_s(options.fault_grace if has_faulted else options.close_grace)
        try:
            async with asyncio.timeout(grace_s):
                await partner.ended.wait()
        except TimeoutError:
            reason = f"has faulted ({factory.fault})" if has_faulted else "was closed"
            error = PairedMessagingFactoryError(
                f"the factory for {factory.address} {reason}, and its partner for {partner.address} was not "
                "closed within"
                f" {grace_s:g} s: it is faulted"
            )
            partner.abort(error)
            self._pairing.event_publisher.emit(EventKind.FACTORY_FAULTED, reason=str(error))
