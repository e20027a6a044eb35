"""The overview of a namespace, with its alerts.

Owns the totals over all entities, and the conditions for alerts. The totals are cached, so that the server spends at
most 2 % of its time collecting them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import twinbus
from twinbus.broker.ports.inspection import PartFigures, add_figures
from twinbus.model.status import Alert, EntityNumbers, Overview, StoreStatus, WorkerStatus
from twinbus.model.times import datetime_of
from twinbus.server.api.entity_status import kind_of, make_counts, make_rates, make_totals
from twinbus.server.api.process_calls import EntityFigures, GetProcess, ProcessFigures
from twinbus.server.api.time_slices import in_slices
from twinbus.server.api.usage_rates import NO_RATES

if TYPE_CHECKING:
    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.api.collector import Collector
    from twinbus.server.api.entity_index import EntityIndex

MAX_SHARE: Final = 0.02
"""The maximum share of the processor time for collecting the sums."""
MIN_KEPT_S: Final = 0.02
"""The shortest collection time for which the sums are cached."""
GROWTH_WINDOW_S: Final = 300.0
GROWTH_STEP_S: Final = 15.0
MANY_FAILED_LOGINS: Final = 20


class Sums:
    """The sums over all entities."""

    def __init__(self) -> None:
        """Create sums of 0."""
        self.figures = PartFigures()
        self.rates = NO_RATES
        self.unavailable_entities = 0
        self.is_complete = True
        """Whether the figures of all entities are known."""

    def add(self, collected: EntityFigures) -> None:
        """Add an entity."""
        figures = collected.figures
        if figures is None or not figures.is_available or not collected.is_complete:
            self.unavailable_entities += 1
        if figures is None or not collected.is_complete:
            self.is_complete = False
        if figures is not None:
            self.figures = add_figures([self.figures, figures])
        if collected.rates != NO_RATES:
            sent, received, settled = (one + other for one, other in zip(self.rates, collected.rates, strict=True))
            self.rates = (sent, received, settled)


class OverviewReader:
    """Reads the overview of a namespace."""

    def __init__(self, gateway: Gateway, index: EntityIndex, collector: Collector) -> None:
        """Create a reader without sums."""
        self._gateway = gateway
        self._index = index
        self._collector = collector
        self._sums = Sums()
        self._valid_until_s = 0.0
        self._lock = asyncio.Lock()
        """Held while the sums are collected, so that concurrent requests share the result."""
        self._dead_letter_history: deque[tuple[float, int]] = deque()
        """Pairs of a time and the total number of messages that were dead-lettered before this time."""
        self._dead_letter_growth = 0
        self._last_workers: dict[int, WorkerStatus] = {}
        self._started_ms = gateway.namespace.clock.wall_ms()

    async def read(self) -> Overview:
        """Return the overview."""
        sums = await self._read_sums()
        processes = await self.processes()
        workers, stores = self.workers(processes), self.stores()
        kinds = Counter(map(kind_of, self._gateway.namespace.entities.values()))
        return Overview(
            namespace=self._gateway.administration.namespace,
            version=twinbus.__version__,
            time=datetime_of(self._gateway.namespace.clock.wall_ms()),
            started=datetime_of(self._started_ms),
            workers=len(workers),
            workers_up=len(processes),
            entities=EntityNumbers(queues=kinds["queue"], topics=kinds["topic"], subscriptions=kinds["subscription"]),
            unavailable_entities=sums.unavailable_entities,
            counts=make_counts(sums.figures),
            totals=make_totals(sums.figures),
            size_bytes=sums.figures.size_bytes,
            rates=make_rates(sums.rates),
            connections=sum(one.worker.connections for one in processes.values()),
            alerts=self._alerts(processes, workers, stores),
        )

    async def processes(self) -> dict[int, ProcessFigures]:
        """Return the figures of all processes that reply in time."""
        answers: dict[int, ProcessFigures] = await self._collector.call_all(GetProcess())
        self._last_workers.update({number: one.worker for number, one in answers.items()})
        return answers

    def workers(self, processes: dict[int, ProcessFigures]) -> list[WorkerStatus]:
        """Return all processes. A process that did not reply is returned as down, with its last known figures."""
        return [
            processes[number].worker if number in processes else _down(number, self._last_workers.get(number))
            for number in self._collector.peers.numbers
        ]

    def stores(self) -> list[StoreStatus]:
        """Return all stores, as this process knows them: the processes publish the health of their stores."""
        return [
            StoreStatus(
                number=number,
                worker=self._collector.peers.owner_of(number),
                is_available=store.unavailable_reason is None,
                accepts_messages=store.unavailable_reason is None and store.disk_full_reason is None,
                reason=store.disk_full_reason or store.unavailable_reason,
            )
            for number, store in enumerate(self._gateway.namespace.stores)
        ]

    async def _read_sums(self) -> Sums:
        async with self._lock:
            return await self._collect_sums()

    async def _collect_sums(self) -> Sums:
        started_s, used_s = time.monotonic(), time.thread_time()
        if started_s < self._valid_until_s:
            return self._sums
        sums = Sums()
        figures = await self._collector.figures(self._index.all())
        async for chunk in in_slices(figures):
            for collected in chunk:
                sums.add(collected)
        took_s = time.thread_time() - used_s  # without the time in which another process does not answer
        self._sums = sums
        self._valid_until_s = started_s + (took_s / MAX_SHARE if took_s >= MIN_KEPT_S else 0.0)
        self._note_dead_letters(started_s, sums)
        return sums

    # --- alerts -------------------------------------------------------------------------------------------------------

    def _note_dead_letters(self, now_s: float, sums: Sums) -> None:
        history, total = self._dead_letter_history, sums.figures.dead_lettered_total
        if not sums.is_complete:  # the dead letters of a process that answers again are not new
            history.clear()
            self._dead_letter_growth = 0
            return
        if not history or now_s - history[-1][0] >= GROWTH_STEP_S:
            history.append((now_s, total))
        while len(history) > 1 and now_s - history[0][0] > GROWTH_WINDOW_S:
            history.popleft()
        self._dead_letter_growth = total - min(earlier for _, earlier in history)

    def _alerts(
        self, processes: dict[int, ProcessFigures], workers: list[WorkerStatus], stores: list[StoreStatus]
    ) -> list[Alert]:
        alerts = [
            Alert(severity="critical", name="worker-down", text=f"process {worker.number} does not answer")
            for worker in workers
            if not worker.is_up
        ]
        alerts += [_store_alert(store) for store in stores if store.reason is not None]
        growth = self._dead_letter_growth
        if growth > 0:
            text = f"{growth:,} messages were dead-lettered in the last {GROWTH_WINDOW_S / 60:.0f} minutes"
            alerts.append(Alert(severity="warning", name="dead-letters-growing", text=text))
        failed_logins = sum(one.recent_failed_logins for one in processes.values())
        if failed_logins >= MANY_FAILED_LOGINS:
            text = f"{failed_logins:,} logins failed in the last 5 minutes: see failed-logins"
            alerts.append(Alert(severity="warning", name="failed-logins", text=text))
        for outage in self._gateway.outage_switch.list_outages():
            text = f"an outage of '{outage['path']}' is rehearsed until {outage['until']}"
            alerts.append(Alert(severity="warning", name="outage-rehearsed", text=text))
        return alerts


def _down(number: int, last: WorkerStatus | None) -> WorkerStatus:
    return WorkerStatus(
        number=number,
        is_up=False,
        started=last.started if last is not None else None,
        connections=0,
        cpu_s=last.cpu_s if last is not None else 0.0,
        memory_bytes=0,
        open_files=0,
    )


def _store_alert(store: StoreStatus) -> Alert:
    name = "store-unavailable" if not store.is_available else "disk-full"
    return Alert(severity="critical", name=name, text=f"store {store.number}: {store.reason}")
