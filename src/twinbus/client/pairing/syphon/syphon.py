"""The syphon of a pairing: one pump for each backlog queue.

Owns: the pumps and the senders that they share, and, in an application that hosts the syphon, the rule that both
factories are closed together.
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
    """The syphon of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Create a pump for each backlog queue; `start` starts them."""
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
        """Start the pumps and the coordination of both factories."""
        for pump in self.pumps:
            pump.start()
        self._coordination.start()

    async def close(self) -> None:
        """Stop the pumps and the coordination of both factories."""
        self._unsubscribe()
        self._coordination.close()
        await asyncio.gather(*[pump.close() for pump in self.pumps])

    def _on_event(self, event: PairingEvent) -> None:
        if event.path is not None:
            self._stop_receiving(event.path)

    def _stop_receiving(self, path: str) -> None:
        """Leave messages in the backlog while there is no connection to the primary.

        Otherwise a pump would receive messages as they are parked, fail to send them, and release them, and the next
        delivery of each message would be billed again. If only a single entity is unavailable, the pumps continue for
        other entities.
        """
        error = self._pairing.health_of(path).failure
        if isinstance(error, ConnectionFailed | ConnectionLost):
            for pump in self.pumps:
                pump.on_primary_lost(path, error)


class FactoryCoordination:
    """The coordination of both factories, which are closed together in an application that hosts the syphon.

    If one factory is closed or faults, the other must be closed within `close_grace` or `fault_grace`; otherwise the
    other factory is faulted, with an error that names both.
    """

    def __init__(self, pairing: Pairing) -> None:
        """Create the coordination; `start` starts watching."""
        self._pairing = pairing
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start watching both factories."""
        primary, secondary = self._pairing.primary, self._pairing.secondary
        self._tasks = [
            asyncio.ensure_future(self._watch(primary, secondary)),
            asyncio.ensure_future(self._watch(secondary, primary)),
        ]

    def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self, factory: MessagingFactory, partner: MessagingFactory) -> None:
        """Fault `partner` if it is still open when the grace period after the close or fault of `factory` is over."""
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
                f" {grace_s:g} s, so the partner was faulted"
            )
            partner.abort(error)
            self._pairing.event_publisher.emit(EventKind.FACTORY_FAULTED, reason=str(error))
