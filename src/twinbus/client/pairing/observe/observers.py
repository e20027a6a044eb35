"""The built-in listeners of a pair: alarms, reports to the secondary, the journal and metrics.

Owns: starting and stopping these listeners, and which events each of them gets. No send waits for a listener.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.client.pairing.observe import alarms, reports
from twinbus.client.pairing.observe.event_publisher import DeferralBegan
from twinbus.client.pairing.observe.events import ALL_KINDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from twinbus.client.journal import Journal
    from twinbus.client.pairing.observe.metrics import Metrics
    from twinbus.client.pairing.pairing import Pairing


class Observers:
    """The built-in listeners of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """Create the listeners; `start` subscribes them to events."""
        self.alarms = alarms.Alarms(pairing)
        self.reports = reports.Reports(pairing)
        self.journal: Journal | None = None
        self._metrics: list[Metrics] = []
        self._pairing = pairing

    def start(self) -> None:
        """Subscribe the listeners. Raise ImportError or OSError if a configured journal cannot be created."""
        events = self._pairing.event_publisher
        folder = self._pairing.options.journal_dir
        if folder is not None:
            from twinbus.client.journal import Journal  # noqa: PLC0415  # pyarrow is optional

            self.journal = Journal(folder, clock=self._pairing.primary.settings.clock)
            events.listen(self.journal.attach(self._pairing.primary).on_event, ALL_KINDS)
            self.journal.attach(self._pairing.secondary)
        events.listen(self.alarms.on_event, alarms.EVENT_KINDS)
        events.listen(lambda _: self.alarms.start(), {DeferralBegan})
        events.listen(lambda _: self.reports.start(), reports.EVENT_KINDS)

    def add_metrics(self, registry: CollectorRegistry | None) -> None:
        """Add the metrics to a registry and start counting, unless the metrics are in that registry already."""
        from twinbus.client.pairing.observe.metrics import Metrics  # noqa: PLC0415  # prometheus-client is optional

        if any(added.registry is registry for added in self._metrics):
            return
        metrics = Metrics(self._pairing)
        metrics.register(registry)
        self._metrics.append(metrics)

    async def stop(self) -> None:
        """Stop checks and reports, and report to the secondary that this client has stopped."""
        self.alarms.close()
        await self.reports.close()

    async def close(self) -> None:
        """Remove the metrics and write the last rows of the journal. Idempotent.

        The factories must be closed first, so that no more rows follow.
        """
        for metrics in self._metrics:
            metrics.unregister()
        self._metrics.clear()
        if self.journal is not None:
            await asyncio.shield(self.journal.close())
