"""The listeners that a pair comes with: alarms, reports to the secondary, the journal and metrics.

Owns: their beginning and end, and which events each of them gets. No send waits for one of them.
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
    """Of one pairing."""

    def __init__(self, pairing: Pairing) -> None:
        """`start` begins."""
        self.alarms = alarms.Alarms(pairing)
        self.reports = reports.Reports(pairing)
        self.journal: Journal | None = None
        self._metrics: list[Metrics] = []
        self._pairing = pairing

    def start(self) -> None:
        """Listen from now on. ImportError, or OSError, where a journal is wanted and cannot be."""
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
        """Count for Prometheus, in a registry."""
        from twinbus.client.pairing.observe.metrics import Metrics  # noqa: PLC0415  # prometheus-client is optional

        if any(one.registry is registry for one in self._metrics):
            return
        metrics = Metrics(self._pairing)
        metrics.register(registry)
        self._metrics.append(metrics)

    async def stop(self) -> None:
        """No more looks and reports; the secondary hears that this client has ended."""
        self.alarms.close()
        await self.reports.close()

    async def close(self) -> None:
        """The factories are closed, too: write the last rows. May be called again."""
        for metrics in self._metrics:
            metrics.unregister()
        self._metrics.clear()
        if self.journal is not None:
            await asyncio.shield(self.journal.close())
