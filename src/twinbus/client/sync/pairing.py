"""Pairing of namespaces for the blocking client: wrappers around the classes of `twinbus.client.pairing`."""

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
    """Options of a pair, with the blocking factory and manager of the secondary."""

    secondary_factory: MessagingFactory  # type: ignore[assignment]  # the blocking class
    secondary_namespace_manager: NamespaceManager  # type: ignore[assignment]

    def inner(self) -> options.SendAvailabilityPairedNamespaceOptions:
        """Return the options with the wrapped factory and manager."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["secondary_factory"] = self.secondary_factory.inner
        values["secondary_namespace_manager"] = self.secondary_namespace_manager.inner
        return options.SendAvailabilityPairedNamespaceOptions(**values)


class Pairing(BlockingObject[pairing.Pairing]):
    """Blocking wrapper around a pair, created by `MessagingFactory.pair_namespace`."""

    @property
    def backlog_queue_count(self) -> int:
        """Number of backlog queues; 0 until the secondary has been prepared."""
        return self.inner.backlog_queue_count

    @property
    def is_protected(self) -> bool:
        """Whether the backlog queues exist. With `require_secondary=False`, pairing does not wait for them."""
        return self.inner.is_protected

    @property
    def is_closed(self) -> bool:
        """Whether the pair is closed."""
        return self.inner.is_closed

    @property
    def spool_status(self) -> SpoolStatus | None:
        """Size and age of the spool; None if there is no spool."""
        return self.inner.spool_status

    @property
    def entities(self) -> tuple[EntityStatus, ...]:
        """State of each entity that has a sender, as this client knows it, without a request."""
        return read_blocking(lambda: self.inner.entities)

    def entity(self, path: str) -> EntityStatus:
        """Return the state of one entity as this client knows it, without a request."""
        return read_blocking(lambda: self.inner.entity(path))

    def resend_refused(self, path: str | None = None) -> int:
        """Requeue the spool's refused messages, or only one entity's, and return their number."""
        return run_blocking(lambda: self.inner.resend_refused(path))

    def status(self) -> PairingStatus:
        """Return the state of the entities, the backlog, the syphon and alarms, within 5 s even during an outage."""
        return run_blocking(self.inner.status)

    def on_event(
        self, listener: Callable[[PairingEvent], None], kinds: Collection[EventKind] = frozenset(EventKind)
    ) -> Callable[[], None]:
        """Call `listener` with each event of these kinds, on the client's own thread. The listener must not block.

        Return a function that removes the listener.
        """
        stop = call_blocking(lambda: self.inner.on_event(listener, kinds))
        return lambda: call_blocking(stop)

    def metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Register Prometheus metrics of the pair in `registry` (default: the global registry)."""
        call_blocking(lambda: self.inner.metrics(registry))

    def mark_path_healthy(self, path: str) -> None:
        """Mark an entity as healthy, so that sends go to the primary again at once, without waiting for a ping."""
        call_blocking(lambda: self.inner.mark_path_healthy(path))
