"""A pair of namespaces: two factories, and the tasks that run between them.

    pairing = await primary.pair_namespace(options)

Owns: starting and stopping a pair, the health of each entity, and the routing of state changes to pings, wakeups and
events. The work is done by other modules: `failover`, `sender`, `backlog`, `syphon`, `spool` and `observe`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from twinbus.client.errors import ObjectClosed
from twinbus.client.pairing.backlog.preparation import SecondaryPreparation
from twinbus.client.pairing.backlog.rotation import Rotation
from twinbus.client.pairing.errors import PairingFailed, PairingRefused, SpoolFailed
from twinbus.client.pairing.failover.entity_health import EntityHealth, EntityState
from twinbus.client.pairing.failover.fragment_outages import FragmentOutages
from twinbus.client.pairing.failover.pings import Pings
from twinbus.client.pairing.observe.event_publisher import STATE_BY_EVENT, PairEventPublisher
from twinbus.client.pairing.observe.events import ALL_KINDS, EventKind
from twinbus.client.pairing.observe.observers import Observers
from twinbus.client.pairing.observe.status import (
    EntityStatus,
    PairingStatus,
    entity_status,
    healthy_entity_status,
    pairing_status,
)
from twinbus.client.pairing.sender import SendAvailabilitySender
from twinbus.client.pairing.spool.spool import Spool
from twinbus.client.pairing.spool.spool_sender import SpoolSender
from twinbus.client.pairing.syphon.syphon import Syphon
from twinbus.client.pairing.syphon.wakeups import Wakeups, fragment_wakeup_key
from twinbus.client.pairing.triggers import class_of
from twinbus.model.errors import FailureClass, InvalidOperation, ServiceBusError
from twinbus.model.path import canonical_key
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from types import TracebackType

    from prometheus_client import CollectorRegistry

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.failover.fragment_outages import FragmentOutage
    from twinbus.client.pairing.observe.events import PairingEvent
    from twinbus.client.pairing.options import SendAvailabilityPairedNamespaceOptions
    from twinbus.client.pairing.spool.spool import SpoolStatus

log: Final = logging.getLogger(__name__)

MAX_PARKED_BYTES: Final = 262_144
"""The largest message that a backlog queue accepts."""
_EVENT_BY_STATE: Final = {state: kind for kind, state in STATE_BY_EVENT.items()}


class Pairing:
    """A pair of namespaces. Created by `MessagingFactory.pair_namespace`."""

    def __init__(self, primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> None:
        """Create a pairing without any I/O; `start` prepares the secondary."""
        self.primary = primary
        self.secondary = options.secondary_factory
        self.options = options
        self.primary_name = _primary_name_of(primary, options)
        self.is_protected = False
        """Whether the backlog queues exist. With `require_secondary=False`, pairing does not wait for them."""
        self.is_closed = False
        self._paired_at_ms = primary.settings.clock.wall_ms()
        self.max_parked_bytes = MAX_PARKED_BYTES
        self.event_publisher = PairEventPublisher(primary.settings.clock, primary.address, self.secondary.address)
        self.rotation = Rotation(
            self.secondary,
            options.secondary_namespace_manager,
            self.primary_name,
            cool_down_s=duration_s(options.backlog_cool_down),
            events=self.event_publisher,
            random=random.SystemRandom(),
        )
        self.preparation = SecondaryPreparation(
            self.rotation,
            options,
            limit_s=primary.settings.operation_timeout_s,
            events=self.event_publisher,
            on_prepared=self._on_prepared,
        )
        """The task that finds or creates the backlog queues."""
        self.wakeups = Wakeups()
        """The wakeups of pumps that wait for an entity of the primary."""
        self._healths: dict[str, EntityHealth] = {}
        self._pings = Pings(primary, duration_s(options.ping_primary_interval), self.event_publisher, self.class_of)
        self.spool: Spool | None = None
        """The spool for messages while both namespaces are down; None without `spool_dir`."""
        self._spool_sender: SpoolSender | None = None
        self.syphon: Syphon | None = None
        """The syphon that moves parked messages to the primary; None if this program does not run the syphon."""
        self._watch_task: asyncio.Task[None] | None = None
        self._primary_timeout_s = (
            None if options.primary_attempt_timeout is None else duration_s(options.primary_attempt_timeout)
        )
        self.observers = Observers(self)
        """The observers of this pairing: alarms, reports, a journal, metrics."""

    async def start(self) -> None:
        """Open the spool, find or create the backlog queues, and start the syphon if it is enabled.

        With `require_secondary=False`, the queues are created and the syphon is started in the background.
        """
        self.observers.start()
        self._watch_task = asyncio.ensure_future(self._watch_factories())
        if self.options.spool_dir is not None:
            await self._open_spool(Path(self.options.spool_dir))
        if self.options.require_secondary:
            await self.preparation.run()
        else:
            self.preparation.start()
        if self._spool_sender is not None:
            self._spool_sender.start()
        self.observers.reports.start()

    async def _open_spool(self, folder: Path) -> None:
        # Each primary has its own folder, so that messages for one namespace are never sent to another namespace.
        name = quote(self.primary_name.lower(), safe="").replace(".", "%2E")
        spool = Spool(folder / name, max_bytes=self.options.spool_max_bytes)
        try:
            await spool.open()
        except SpoolFailed as error:
            raise PairingFailed(f"the spool cannot be opened: {error}") from error
        self.spool, self._spool_sender = spool, SpoolSender(self, spool)
        if not spool.is_empty:
            log.warning("sending %d messages that were left in the spool %s", spool.status.count, spool.folder)
        self.observers.alarms.check_spool()

    async def _watch_factories(self) -> None:
        """Stop the tasks that need a factory when the application closes that factory, or the factory faults."""
        await self.primary.ended.wait()
        self._stop_pings()
        await self.observers.reports.close()  # a closed primary sends nothing that could be reported
        await self.secondary.ended.wait()
        self._watch_task = None
        await self.stop()

    def _stop_pings(self) -> None:
        self._pings.close()
        for health in self._healths.values():
            health.close()

    def _on_prepared(self) -> None:
        self.is_protected = True
        self.options.backlog_queue_count = len(self.rotation.queues)
        if self.options.enable_syphon:
            self.syphon = Syphon(self)
            self.syphon.start()
            self.observers.alarms.start()

    # --- for applications ---------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Pairing of {self.primary.address} with {self.secondary.address}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def backlog_queue_count(self) -> int:
        """The number of backlog queues; 0 until the secondary has been prepared."""
        return len(self.rotation.queues)

    @property
    def spool_status(self) -> SpoolStatus | None:
        """The size and age of the spool; None if there is no spool."""
        return None if self.spool is None else self.spool.status

    async def resend_refused(self, path: str | None = None) -> int:
        """Requeue the spool's refused messages, or only one entity's, and return their number.

        The messages go to the end of the spool. A message that is rejected again returns to `refused/`.
        """
        if self.spool is None:
            raise InvalidOperation("there is no spool: set spool_dir in the pairing options")
        requeued = await self.spool.requeue_refused(path)
        self.observers.alarms.check_spool()
        return requeued

    @property
    def entities(self) -> tuple[EntityStatus, ...]:
        """The state of each entity that has a sender, as this client knows it, without a request."""
        return tuple(entity_status(health) for health in self._healths.values())

    def entity(self, path: str) -> EntityStatus:
        """Return the state of one entity as this client knows it: healthy, unless a send or a ping failed.

        The call sends no request, so it is cheap enough for every send or every request of a health check.
        """
        health = self._healths.get(canonical_key(path))
        return healthy_entity_status(path, self._paired_at_ms) if health is None else entity_status(health)

    def events(self) -> AsyncIterator[PairingEvent]:
        """Return a stream of the events that occur from now on."""
        return self.event_publisher.stream()

    def on_event(
        self, listener: Callable[[PairingEvent], None], kinds: Collection[EventKind] = ALL_KINDS
    ) -> Callable[[], None]:
        """Call `listener` with each event of these kinds, in the event loop, so the listener must not block.

        The returned function removes the listener. Listen only for the kinds that are needed, because some kinds have
        an event for each message.
        """
        return self.event_publisher.listen(listener, kinds)

    async def status(self) -> PairingStatus:
        """Return the current state of the entities, backlog, syphon and alarms within 5 s, even during an outage."""
        return await pairing_status(self)

    def metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Start counting for Prometheus, in `registry` or in the default registry."""
        self.observers.add_metrics(registry)

    def mark_path_healthy(self, path: str) -> None:
        """Mark an entity healthy, so that sends go to the primary again at once, regardless of ping results."""
        health = self._healths.get(canonical_key(path))
        if health is not None:
            health.mark_healthy()

    async def close(self) -> None:
        """Close both factories and stop all tasks between them. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            await self.stop()
            await asyncio.gather(self.primary.close(), self.secondary.close())
            await self.observers.close()

    async def stop(self) -> None:
        """Stop the tasks between the factories: pings, pumps, timers, and the spool sender."""
        self._stop_pings()
        self.rotation.close()
        await self.observers.stop()
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self.preparation.close()
        if self._spool_sender is not None:
            await self._spool_sender.close()
        if self.syphon is not None:
            await self.syphon.close()
        if self.spool is not None:
            await self.spool.close()

    # --- for its modules ----------------------------------------------------------------------------------------------

    def make_sender(self, path: str, via: str | None = None) -> SendAvailabilitySender:
        """Create a paired sender for an entity."""
        if self.is_closed:
            raise ObjectClosed(f"{self!r} is closed")
        return SendAvailabilitySender(self, path, via=via)

    def health_of(self, path: str) -> EntityHealth:
        """Return the health of an entity, shared by all senders of the factory, however they spell its path."""
        key = canonical_key(path)
        health = self._healths.get(key)
        if health is None:
            clock = self.primary.settings.clock
            health = self._healths[key] = EntityHealth(
                path,
                interval_s=duration_s(self.options.failover_interval),
                clock=clock,
                fragment_outages=FragmentOutages(path, clock, self._on_fragment_change),
                on_change=self._on_state_change,
                wakeups=self.wakeups,
            )
        return health

    @property
    def entity_healths(self) -> Sequence[EntityHealth]:
        """The health of every entity that has a sender."""
        return list(self._healths.values())

    def primary_timeout_s(self, limit_s: float) -> float:
        """Return how much of an operation's time an attempt at the primary may take."""
        return limit_s / 2 if self._primary_timeout_s is None else min(self._primary_timeout_s, limit_s)

    def class_of(self, error: ServiceBusError) -> FailureClass:
        """Return the class of a failure for a paired sender."""
        return class_of(error, self.options.triggers)

    def triggers_failover(self, error: ServiceBusError) -> bool:
        """Return whether a failure means that the entity is unavailable."""
        return self.class_of(error) is FailureClass.UNAVAILABLE

    def _on_state_change(self, health: EntityHealth, _before: EntityState) -> None:
        """Publish an entity's new state; start pings on failover, and stop them when the entity is healthy again."""
        reason = None if health.failure is None else str(health.failure)
        self.event_publisher.emit(_EVENT_BY_STATE[health.state], path=health.path, reason=reason)
        if health.state is EntityState.FAILED_OVER:
            self._pings.start(health)
        elif health.state is EntityState.HEALTHY:
            self._pings.stop(health)

    def _on_fragment_change(self, outage: FragmentOutage, error: ServiceBusError | None) -> None:
        """Publish that a fragment went down or came back; ping the fragment while it is down."""
        kind = EventKind.FRAGMENT_DOWN if outage.is_pinged else EventKind.FRAGMENT_BACK
        if kind is EventKind.FRAGMENT_BACK:
            self.wakeups.notify(fragment_wakeup_key(outage.path, outage.number))
        reason = None if error is None else str(error)
        self.event_publisher.emit(kind, path=outage.path, fragment=outage.number, reason=reason)
        if outage.is_pinged:
            self._pings.start(outage)
        else:
            self._pings.stop(outage)


def check_pair(primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> None:
    """Raise PairingRefused or InvalidArgument if these namespaces cannot be paired."""
    options.check()
    secondary = options.secondary_factory
    if (primary.where.host.lower(), primary.where.amqp_port) == (
        secondary.where.host.lower(),
        secondary.where.amqp_port,
    ):
        raise PairingRefused(f"primary and secondary are both {primary.address}: a pair needs two namespaces")
    if primary.pairing is not None:
        raise PairingRefused(
            f"the factory for {primary.address} is paired already, with {primary.pairing.secondary.address}"
        )
    if secondary.pairing is not None:
        raise PairingRefused(f"the secondary {secondary.address} is itself the primary of a pair")
    managed_host = options.secondary_namespace_manager.where.host.lower()
    if managed_host == primary.where.host.lower() != secondary.where.host.lower():
        raise PairingRefused(
            f"secondary_namespace_manager is for {managed_host}, the primary; backlog queues are created in the"
            f" secondary, so it must be for {secondary.where.host}"
        )
    _primary_name_of(primary, options)


def _primary_name_of(primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> str:
    name = options.primary_namespace_name or primary.where.namespace
    if name is None:
        raise PairingRefused(
            f"the name of the primary cannot be read from its host {primary.where.host!r}: set primary_namespace_name"
        )
    return name
