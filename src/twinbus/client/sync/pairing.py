"""Blocking pairs. What they do is in `twinbus.client.pairing`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from twinbus.client.pairing import EventKind, options, pairing
from twinbus.client.sync.background_loop import BlockingObject, call_blocking, read_blocking, run_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from prometheus_client import CollectorRegistry

    from twinbus.client.pairing import EntityStatus, PairingEvent, PairingStatus, SpoolStatus
    from twinbus.client.sync.factory import MessagingFactory
    from twinbus.client.sync.management import NamespaceManager


@dataclass(kw_only=True)
class SendAvailabilityPairedNamespaceOptions(options.SendAvailabilityPairedNamespaceOptions):
    """The same options, with the blocking factory and manager of the secondary."""

    secondary_factory: MessagingFactory  # type: ignore[assignment]  # the one of this package
    secondary_namespace_manager: NamespaceManager  # type: ignore[assignment]

    def inner(self) -> options.SendAvailabilityPairedNamespaceOptions:
        """What the loop in the background is told."""
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        given["secondary_factory"] = self.secondary_factory.inner
        given["secondary_namespace_manager"] = self.secondary_namespace_manager.inner
        return options.SendAvailabilityPairedNamespaceOptions(**given)


class Pairing(BlockingObject[pairing.Pairing]):
    """Two namespaces, paired. Made by `MessagingFactory.pair_namespace`."""

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues were found or made."""
        return self.inner.backlog_queue_count

    @property
    def is_protected(self) -> bool:
        """The backlog queues are there. False only until a secondary that is not required has been prepared."""
        return self.inner.is_protected

    @property
    def is_closed(self) -> bool:
        """It cannot be used any more."""
        return self.inner.is_closed

    @property
    def spool_status(self) -> SpoolStatus | None:
        """How much is on the local disk, and since when; None if there is no spool."""
        return self.inner.spool_status

    @property
    def entities(self) -> tuple[EntityStatus, ...]:
        """The state of each entity that a sender was made for, as this client holds it. Asks nobody."""
        return read_blocking(lambda: self.inner.entities)

    def entity(self, path: str) -> EntityStatus:
        """Return the state of one entity as this client holds it. Asks nobody."""
        return read_blocking(lambda: self.inner.entity(path))

    def resend_refused(self, path: str | None = None) -> int:
        """Send messages of the spool again that were refused, all or those for one entity: how many."""
        return run_blocking(lambda: self.inner.resend_refused(path))

    def status(self) -> PairingStatus:
        """How it is now: the entities, the backlog, the syphon, alarms. Within 5 s, whatever is down."""
        return run_blocking(self.inner.status)

    def on_event(
        self, listener: Callable[[PairingEvent], None], kinds: Collection[EventKind] = frozenset(EventKind)
    ) -> Callable[[], None]:
        """Have `listener` called with each event of these kinds, on the client's own thread: it must not wait there."""
        end = call_blocking(lambda: self.inner.on_event(listener, kinds))
        return lambda: call_blocking(end)

    def metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Count from now on, for Prometheus: in `registry`, or in the default one."""
        call_blocking(lambda: self.inner.metrics(registry))

    def mark_path_healthy(self, path: str) -> None:
        """Send to the primary again at once, whatever the pings say."""
        call_blocking(lambda: self.inner.mark_path_healthy(path))
