"""The metrics page: one page for all processes of the server.

Owns the families for the namespace, its processes, stores and disks. Totals of messages are on disk and survive a crash
(`entity_metrics`); what only a process's memory has is exported for each process, so that a restart is visible as the
reset of a counter.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import twinbus
from twinbus.model.errors import ServiceBusError
from twinbus.server.api.entity_metrics import EntityMetrics
from twinbus.server.api.metrics_format import Family, render
from twinbus.server.api.pairing_summary import summarise
from twinbus.server.api.usage_rates import OPERATIONS

if TYPE_CHECKING:
    from twinbus.model.status import PairingStatus
    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.api.collector import Collector
    from twinbus.server.api.entity_index import EntityIndex
    from twinbus.server.api.overview import OverviewReader
    from twinbus.server.api.process_calls import ProcessFigures

BUILD: Final = Family("twinbus_info", "gauge", "The namespace and the version of the server; always 1.")
WORKER_UP: Final = Family("twinbus_worker_up", "gauge", "1 if the process answers.")
WORKER_STARTED: Final = Family("twinbus_worker_start_time_seconds", "gauge", "Start of the process.")
WORKER_CPU: Final = Family("twinbus_worker_cpu_seconds_total", "counter", "Processor time used by the process.")
WORKER_MEMORY: Final = Family("twinbus_worker_memory_bytes", "gauge", "Resident memory of the process.")
WORKER_FILES: Final = Family("twinbus_worker_open_files", "gauge", "Open files and sockets of the process.")
CONNECTIONS: Final = Family("twinbus_connections", "gauge", "Open AMQP connections of the process.")
OPENED: Final = Family(
    "twinbus_opened_connections_total", "counter", "AMQP connections opened since the process start."
)
FAILED_LOGINS: Final = Family("twinbus_failed_logins_total", "counter", "Failed logins since the process start.")
USAGE: Final = Family(
    "twinbus_operations_total", "counter", "Operations of clients since the process start, as metered."
)
STORE_AVAILABLE: Final = Family("twinbus_store_available", "gauge", "1 if the store works.")
STORE_ACCEPTS: Final = Family(
    "twinbus_store_accepts_messages", "gauge", "1 if the store works and its disk is not full."
)
DISK_FREE: Final = Family("twinbus_disk_free_bytes", "gauge", "Free space on the disk of the store.")
DISK_SIZE: Final = Family("twinbus_disk_size_bytes", "gauge", "Size of the disk of the store.")
DISK_MINIMUM: Final = Family("twinbus_disk_min_free_bytes", "gauge", "Below this space, the store accepts no messages.")
OUTAGES: Final = Family("twinbus_rehearsed_outages", "gauge", "Rehearsed outages that are on now.")
PAIRED_CLIENTS: Final = Family("twinbus_paired_clients", "gauge", "Paired clients that report, by primary.")
UNPROTECTED: Final = Family("twinbus_unprotected_clients", "gauge", "Paired clients whose secondary cannot take over.")
FAILED_OVER: Final = Family("twinbus_failed_over_entities", "gauge", "Entities failed over, added up over all clients.")


class MetricsPage:
    """The page for Prometheus."""

    def __init__(self, gateway: Gateway, index: EntityIndex, collector: Collector, overview: OverviewReader) -> None:
        """Create a page; `overview` has the processes and stores."""
        self._gateway = gateway
        self._index = index
        self._collector = collector
        self._overview = overview
        self._entity_metrics = EntityMetrics()
        self._lock = asyncio.Lock()
        """Held while a page is rendered: concurrent scrapes would do the same work twice."""

    async def render(self) -> list[bytes]:
        """Return the page in pieces."""
        async with self._lock:
            entities, version = self._index.all(), self._index.version
            figures = await self._collector.figures(entities)
            pieces = await self._entity_metrics.render(entities, figures, version)
        processes = await self._overview.processes()
        others = [self._render_processes(processes), self._render_stores(processes), await self._render_namespace()]
        return [*pieces, *[text.encode() for text in others]]

    def _render_processes(self, processes: dict[int, ProcessFigures]) -> str:
        by_label = [({"worker": number}, figures) for number, figures in processes.items()]
        workers = self._overview.workers(processes)
        return "".join(
            [
                render(WORKER_UP, [({"worker": worker.number}, int(worker.is_up)) for worker in workers]),
                render(
                    WORKER_STARTED,
                    [({"worker": one.number}, one.started.timestamp()) for one in workers if one.started is not None],
                ),
                render(WORKER_CPU, [(labels, figures.worker.cpu_s) for labels, figures in by_label]),
                render(WORKER_MEMORY, [(labels, figures.worker.memory_bytes) for labels, figures in by_label]),
                render(WORKER_FILES, [(labels, figures.worker.open_files) for labels, figures in by_label]),
                render(CONNECTIONS, [(labels, figures.worker.connections) for labels, figures in by_label]),
                render(OPENED, [(labels, figures.opened_connections) for labels, figures in by_label]),
                render(FAILED_LOGINS, [(labels, figures.failed_logins) for labels, figures in by_label]),
                render(
                    USAGE,
                    [
                        ({**labels, "operation": operation}, count)
                        for labels, figures in by_label
                        for operation, count in zip(OPERATIONS, figures.usage, strict=True)
                    ],
                ),
            ]
        )

    def _render_stores(self, processes: dict[int, ProcessFigures]) -> str:
        stores = [({"store": store.number}, store) for store in self._overview.stores()]
        found = sorted((disk for one in processes.values() for disk in one.disks), key=lambda disk: disk.store)
        disks = [({"store": disk.store}, disk) for disk in found]
        return "".join(
            [
                render(STORE_AVAILABLE, [(labels, int(store.is_available)) for labels, store in stores]),
                render(STORE_ACCEPTS, [(labels, int(store.accepts_messages)) for labels, store in stores]),
                render(DISK_FREE, [(labels, disk.free_bytes) for labels, disk in disks if disk.free_bytes is not None]),
                render(
                    DISK_SIZE, [(labels, disk.total_bytes) for labels, disk in disks if disk.total_bytes is not None]
                ),
                render(DISK_MINIMUM, [(labels, disk.min_free_bytes) for labels, disk in disks]),
            ]
        )

    async def _render_namespace(self) -> str:
        name = self._gateway.administration.namespace
        pairings: list[tuple[dict[str, object], PairingStatus]] = []
        with suppress(ServiceBusError):  # the supervisor, which has the reports, does not answer
            pairings += [({"primary": one.primary}, one) for one in await summarise(self._gateway.pairing_reports)]
        return "".join(
            [
                render(BUILD, [({"namespace": name, "version": twinbus.__version__}, 1)]),
                render(OUTAGES, [({}, len(self._gateway.outage_switch.list_outages()))]),
                render(PAIRED_CLIENTS, [(labels, one.clients) for labels, one in pairings]),
                render(UNPROTECTED, [(labels, one.unprotected_clients) for labels, one in pairings]),
                render(FAILED_OVER, [(labels, one.failed_over_entities) for labels, one in pairings]),
            ]
        )
