"""A pair: two factories, and what goes on between them.

    pairing = await primary.pair_namespace(options)

Owns: the making of a pair and its end, the state of each entity, and who is told what. The parts are in their own
files: `failover`, `sender`, `backlog`, `preparation`, `pings`, `syphon`, `spool`.
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
"""What a backlog queue takes."""
_EVENT_BY_STATE: Final = {state: kind for kind, state in STATE_BY_EVENT.items()}


class Pairing:
    """Two namespaces, paired. Made by `MessagingFactory.pair_namespace`."""

    def __init__(self, primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> None:
        """`start` prepares the secondary."""
        self.primary = primary
        self.secondary = options.secondary_factory
        self.options = options
        self.primary_name = _primary_name_of(primary, options)
        self.is_protected = False
        """The backlog queues are there. False only until a secondary that is not required has been prepared."""
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
        """Of the backlog queues."""
        self.wakeups = Wakeups()
        """Pumps that wait for an entity hear of every answer of it."""
        self._healths: dict[str, EntityHealth] = {}
        self._pings = Pings(primary, duration_s(options.ping_primary_interval), self.event_publisher, self.class_of)
        self.spool: Spool | None = None
        """Where messages go when both namespaces are down, if that is wanted."""
        self._spool_sender: SpoolSender | None = None
        self.syphon: Syphon | None = None
        """What takes parked messages back, if this program does."""
        self._watch_task: asyncio.Task[None] | None = None
        self._primary_timeout_s = (
            None if options.primary_attempt_timeout is None else duration_s(options.primary_attempt_timeout)
        )
        self.observers = Observers(self)
        """Who looks on: alarms, reports, a journal, metrics."""

    async def start(self) -> None:
        """Take the spool, find or make the backlog queues, and start the syphon if it is wanted.

        If the secondary is not required, the queues, and the syphon, follow in the background.
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
        # A folder for each primary: what was meant for one namespace must never be sent to another.
        name = quote(self.primary_name.lower(), safe="").replace(".", "%2E")
        spool = Spool(folder / name, max_bytes=self.options.spool_max_bytes)
        try:
            await spool.open()
        except SpoolFailed as error:
            raise PairingFailed(f"the spool cannot be used: {error}") from error
        self.spool, self._spool_sender = spool, SpoolSender(self, spool)
        if not spool.is_empty:
            log.warning("%d messages were left in the spool %s: they go on", spool.status.count, spool.folder)
        self.observers.alarms.check_spool()

    async def _watch_factories(self) -> None:
        """A factory may be closed, or fault, without the pairing: then what needs it ends, too."""
        await self.primary.ended.wait()
        self._stop_pings()
        await self.observers.reports.close()  # nothing is sent any more
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
        """How many backlog queues were found or made; 0 until a secondary that is not required has been prepared."""
        return len(self.rotation.queues)

    @property
    def spool_status(self) -> SpoolStatus | None:
        """How much is on the local disk, and since when; None if there is no spool."""
        return None if self.spool is None else self.spool.status

    async def resend_refused(self, path: str | None = None) -> int:
        """Send messages of the spool again that were refused, all or those for one entity: how many.

        They go behind everything in the spool. A message that is refused again for a fault of its own returns to
        `refused/`.
        """
        if self.spool is None:
            raise InvalidOperation("there is no spool: say spool_dir when pairing")
        taken = await self.spool.requeue_refused(path)
        self.observers.alarms.check_spool()
        return taken

    @property
    def entities(self) -> tuple[EntityStatus, ...]:
        """The state of each entity that a sender was made for, as this client holds it. Asks nobody."""
        return tuple(entity_status(health) for health in self._healths.values())

    def entity(self, path: str) -> EntityStatus:
        """Return the state of one entity as this client holds it: healthy, unless a send or a ping has shown otherwise.

        Asks nobody, so it costs next to nothing: call it before each send, or on each request of a health check.
        """
        health = self._healths.get(canonical_key(path))
        return healthy_entity_status(path, self._paired_at_ms) if health is None else entity_status(health)

    def events(self) -> AsyncIterator[PairingEvent]:
        """What happens from now on."""
        return self.event_publisher.stream()

    def on_event(
        self, listener: Callable[[PairingEvent], None], kinds: Collection[EventKind] = ALL_KINDS
    ) -> Callable[[], None]:
        """Have `listener` called with each event of these kinds, in the loop: it must not wait.

        Call the answer to end it. Events that nobody listens for cost nothing: there is one for each message moved.
        """
        return self.event_publisher.listen(listener, kinds)

    async def status(self) -> PairingStatus:
        """How it is now: the entities, the backlog, the syphon, alarms. Within 5 s, whatever is down."""
        return await pairing_status(self)

    def metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Count from now on, for Prometheus: in `registry`, or in the default one."""
        self.observers.add_metrics(registry)

    def mark_path_healthy(self, path: str) -> None:
        """Send to the primary again at once, whatever the pings say."""
        health = self._healths.get(canonical_key(path))
        if health is not None:
            health.mark_healthy()

    async def close(self) -> None:
        """Close both factories, and all that goes on between them. May be called again."""
        if not self.is_closed:
            self.is_closed = True
            await self.stop()
            await asyncio.gather(self.primary.close(), self.secondary.close())
            await self.observers.close()

    async def stop(self) -> None:
        """End what goes on between the factories: pings, pumps, timers, and what is sent from the spool."""
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

    # --- for its parts ------------------------------------------------------------------------------------------------

    def make_sender(self, path: str, via: str | None = None) -> SendAvailabilitySender:
        """What sends to an entity from now on."""
        if self.is_closed:
            raise ObjectClosed(f"{self!r} is closed")
        return SendAvailabilitySender(self, path, via=via)

    def health_of(self, path: str) -> EntityHealth:
        """What is held of an entity; the same for all senders of the factory, however they spell its path (Q12)."""
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
        """Of every entity that a sender was made for."""
        return list(self._healths.values())

    def primary_timeout_s(self, limit_s: float) -> float:
        """How much of an operation's time an attempt at the primary may take."""
        return limit_s / 2 if self._primary_timeout_s is None else min(self._primary_timeout_s, limit_s)

    def class_of(self, error: ServiceBusError) -> FailureClass:
        """What a failure is to a paired sender."""
        return class_of(error, self.options.triggers)

    def triggers_failover(self, error: ServiceBusError) -> bool:
        """Whether a failure says that the entity is not available."""
        return self.class_of(error) is FailureClass.UNAVAILABLE

    def _on_state_change(self, health: EntityHealth, _before: EntityState) -> None:
        """An entity's state has changed: pings start with redirection (R037) and stop with it (R067)."""
        reason = None if health.failure is None else str(health.failure)
        self.event_publisher.emit(_EVENT_BY_STATE[health.state], path=health.path, reason=reason)
        if health.state is EntityState.FAILED_OVER:
            self._pings.start(health)
        elif health.state is EntityState.HEALTHY:
            self._pings.stop(health)

    def _on_fragment_change(self, outage: FragmentOutage, error: ServiceBusError | None) -> None:
        """A fragment of an entity went down, or is back: it is pinged meanwhile."""
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
    """PairingRefused, or InvalidArgument, where these cannot be paired."""
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
    managed = options.secondary_namespace_manager.where.host.lower()
    if managed == primary.where.host.lower() != secondary.where.host.lower():
        raise PairingRefused(
            f"secondary_namespace_manager is one of {managed}, the primary; backlog queues are made in the secondary, "
            f"{secondary.where.host}"
        )
    _primary_name_of(primary, options)


def _primary_name_of(primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> str:
    name = options.primary_namespace_name or primary.where.namespace
    if name is None:
        raise PairingRefused(
            f"the name of the primary cannot be read from its host {primary.where.host!r}: say primary_namespace_name"
        )
    return name
